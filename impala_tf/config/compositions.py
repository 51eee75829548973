"""The named agents: which torso, core and inputs each one combines.

`agents/torsos.py` holds the torsos and `agents/networks.py` the cores that these names refer to.
"""

from __future__ import annotations

from typing import Literal, NamedTuple


class AgentComposition(NamedTuple):
    """An agent is a torso and a core; some also see the last action and reward."""

    torso: Literal["shallow", "nature", "impala", "impoola", "mlp"]
    core: Literal["feedforward", "lstm"]
    observes_last_action_and_reward: bool


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
