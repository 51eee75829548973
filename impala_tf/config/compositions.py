"""The named agents: which torso, core and inputs each one combines.

`agents/torsos.py` holds the torsos and `agents/networks.py` the cores that these names refer to.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from impala_tf.config import plug_ins

CoreName = Literal["feedforward", "lstm"]
HeadsName = Literal["policy", "q_values", "dueling"]


class Torso(NamedTuple):
    """What the rest of the project asks about a torso; `agents.torsos` makes it."""

    name: str
    takes: Literal["images", "vectors", "both"]
    is_residual: bool = False  # a deep network, whose activations take much memory


SHALLOW = Torso("shallow", "images")
NATURE = Torso("nature", "images")
IMPALA = Torso("impala", "images", is_residual=True)
IMPOOLA = Torso("impoola", "images", is_residual=True)
MLP = Torso("mlp", "vectors")


class AgentComposition(NamedTuple):
    """An agent is a torso and a core; some also see the last action and reward.

    If the baseline is separate, it has a torso of its own, which the policy does not depend on.
    """

    torso: Torso
    core: CoreName
    observes_last_action_and_reward: bool
    separate_baseline: bool = False

    @property
    def learns_as_fast_as_it_acts(self) -> bool:
        """Whether updates take about half of the CPU time; see docs/speed.md."""
        fast = self.torso == SHALLOW or self.separate_baseline
        return fast and self.core == "feedforward"

    def with_core(self, core: CoreName | None) -> AgentComposition:
        """Returns this composition with the core that --core names; None keeps its own.

        The inputs stay the same: the agent's name decides whether it sees the last action and
        reward.
        """
        if core is None:
            return self
        # With an LSTM, the baseline needs the memory, too, so it cannot be separate.
        is_separate = self.separate_baseline and core == "feedforward"
        return self._replace(core=core, separate_baseline=is_separate)


AGENTS: dict[str, AgentComposition] = {
    "SimpleConvNetAgent": AgentComposition(NATURE, "feedforward", True),
    "NatureAgent": AgentComposition(NATURE, "feedforward", False),
    "ShallowConvNetAgent": AgentComposition(SHALLOW, "feedforward", False),
    "SeparateShallowConvNetAgent": AgentComposition(SHALLOW, "feedforward", False, True),
    "ShallowConvNetLSTMAgent": AgentComposition(SHALLOW, "lstm", True),
    "ResNetAgent": AgentComposition(IMPALA, "feedforward", False),
    "ResNetLSTMAgent": AgentComposition(IMPALA, "lstm", True),
    "ImpoolaAgent": AgentComposition(IMPOOLA, "feedforward", False),
    "ImpoolaLSTMAgent": AgentComposition(IMPOOLA, "lstm", True),
    "MLPAgent": AgentComposition(MLP, "feedforward", False),
    "SeparateMLPAgent": AgentComposition(MLP, "feedforward", False, separate_baseline=True),
    "MLPLSTMAgent": AgentComposition(MLP, "lstm", True),
}


def composition(agent_name: str) -> AgentComposition:
    """Returns a named agent. A class of the user's, module:Class, is feed-forward; see --core.

    Its class is not imported here: launchers and actors without TensorFlow call this, too.
    """
    if plug_ins.is_own(agent_name):
        return AgentComposition(Torso(agent_name, "both"), "feedforward", False)
    return AGENTS[agent_name]
