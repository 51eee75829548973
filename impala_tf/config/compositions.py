"""The named agents: which torso, core and inputs each one combines.

`agents/torsos.py` holds the torsos and `agents/networks.py` the cores that these names refer to.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

CoreName = Literal["feedforward", "lstm"]
HeadsName = Literal["policy", "q_values", "dueling"]


class AgentComposition(NamedTuple):
    """An agent is a torso and a core; some also see the last action and reward."""

    torso: Literal["shallow", "nature", "impala", "impoola", "mlp"]
    core: CoreName
    observes_last_action_and_reward: bool

    def with_core(self, core: CoreName | None) -> AgentComposition:
        """Returns this composition with the core that --core names; None: its own.

        The inputs stay: whether the agent sees the last action and reward belongs to its name.
        """
        if core is None:
            return self
        return self._replace(core=core)


AGENTS: dict[str, AgentComposition] = {
    "SimpleConvNetAgent": AgentComposition("nature", "feedforward", True),
    "NatureAgent": AgentComposition("nature", "feedforward", False),
    "ShallowConvNetAgent": AgentComposition("shallow", "feedforward", False),
    "ShallowConvNetLSTMAgent": AgentComposition("shallow", "lstm", True),
    "ResNetAgent": AgentComposition("impala", "feedforward", False),
    "ResNetLSTMAgent": AgentComposition("impala", "lstm", True),
    "ImpoolaAgent": AgentComposition("impoola", "feedforward", False),
    "ImpoolaLSTMAgent": AgentComposition("impoola", "lstm", True),
    "MLPAgent": AgentComposition("mlp", "feedforward", False),
    "MLPLSTMAgent": AgentComposition("mlp", "lstm", True),
}
