"""The shapes of an agent's outputs and core state, known without TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tree

from impala_tf.config import AgentConfig, CoreName, HeadsName, composition
from impala_tf.environments.observations import layout_of
from impala_tf.types import (
    ActionSpec,
    AgentOutput,
    ArraySpec,
    EnvironmentSpec,
    EnvOutput,
    Nest,
    Unroll,
)

LSTM_SIZE = 256

Policy = Callable[[EnvOutput, Nest], tuple[AgentOutput, Nest]]
"""Maps a step [N, ...] of the environments (NumPy) and the core state before it to the agent's
answer and the core state after it (tensors or NumPy arrays)."""


class AgentInterface(NamedTuple):
    """What actors and the transport have to know about an agent."""

    core_state: Nest  # of ArraySpec, without the leading N; () for a feed-forward core
    num_logits: int  # P of a policy; with Q-values, the number of actions
    has_q_values: bool

    def initial_state(self, num_envs: int) -> Nest:
        """Returns the core state of N environments before their first step, float32 [N, ...]."""
        return tree.map_structure(
            lambda spec: np.zeros((num_envs, *spec.shape), spec.dtype), self.core_state
        )


def num_logits(actions: ActionSpec) -> int:
    """Returns P, the number of a policy's parameters for a step; see `distributions`."""
    return (2 if actions.kind == "continuous" else 1) * sum(actions.sizes)


def interface_of(core: CoreName, heads: HeadsName, actions: ActionSpec) -> AgentInterface:
    """Returns the interface of an agent with this core and these heads and actions."""
    size = ArraySpec((LSTM_SIZE,), "float32")
    return AgentInterface(
        core_state=(size, size) if core == "lstm" else (),
        num_logits=num_logits(actions),
        has_q_values=heads != "policy",
    )


def interface_of_config(config: AgentConfig, spec: EnvironmentSpec) -> AgentInterface:
    """Returns the interface of the agent that a config describes."""
    core = composition(config.agent_name).with_core(config.core).core
    return interface_of(core, config.heads, spec.actions)


def array_specs(interface: AgentInterface, spec: EnvironmentSpec, unroll_length: int) -> Unroll:
    """Returns an Unroll of ArraySpec: T decisions of one environment, as they are sent."""
    actions = spec.actions
    return Unroll(
        parameter_version=ArraySpec((), "int64"),
        core_state=interface.core_state,
        env_outputs=layout_of(spec).unroll_specs(unroll_length),
        agent_outputs=AgentOutput(
            action=ArraySpec((unroll_length, *actions.shape), actions.dtype),
            policy_logits=ArraySpec((unroll_length, interface.num_logits), "float32"),
        ),
        level=ArraySpec((), "int32"),
        td_errors=ArraySpec((unroll_length,), "float32") if interface.has_q_values else (),
    )
