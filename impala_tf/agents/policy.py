"""Choosing actions with an agent: the compiled step that actors and evaluation share."""

from __future__ import annotations

from typing import Literal

import numpy as np
import tensorflow as tf

from impala_tf.agents.agent import Agent, tensor_specs
from impala_tf.agents.distributions import Distribution, EpsilonGreedy
from impala_tf.agents.interface import Policy
from impala_tf.environments.observations import layout_of
from impala_tf.types import AgentOutput, EnvironmentSpec, EnvOutput, Nest


def compile_policy(
    agent: Agent,
    spec: EnvironmentSpec,
    num_envs: int,
    seed: int,
    choice: Literal["sampled", "greedy"] = "sampled",
    distribution: Distribution | None = None,
) -> Policy:
    """Returns the agent's compiled policy for N environments.

    Args:
      agent: the agent, whose variables are read at every call.
      spec: the level's specification.
      num_envs: N.
      seed: the seed for sampling actions.
      choice: whether to sample from the policy, or to take the most likely action.
      distribution: replaces the agent's own, for example by an epsilon for each environment.
    """
    layout = layout_of(spec)
    actions = agent.distribution if distribution is None else distribution
    generator = tf.random.Generator.from_seed(seed)
    step = tensor_specs(layout.step_specs(num_envs))
    state = tensor_specs(agent.initial_state(num_envs))

    @tf.function(input_signature=(step, state), autograph=False)
    def act(env_output: EnvOutput, core_state: Nest) -> tuple[AgentOutput, Nest]:
        outputs, core_state = agent.step(layout.to_network(env_output), core_state)
        logits = outputs.policy_logits
        action = actions.mode(logits) if choice == "greedy" else actions.sample(logits, generator)
        return AgentOutput(action, logits), core_state

    concrete = act.get_concrete_function()

    def policy(env_output: EnvOutput, core_state: Nest) -> tuple[AgentOutput, Nest]:
        # A concrete function that gets tensors skips the checks of its arguments, which take a
        # third of a step.
        return concrete(EnvOutput(*map(_as_tensors, env_output)), core_state)

    return policy


def _as_tensors(field: Nest) -> Nest:
    if isinstance(field, dict):
        return {part: tf.constant(value) for part, value in field.items()}
    return tf.constant(field)


class OwnNetwork:
    """An `acting.Network` that runs the agent itself, in TensorFlow.

    Args:
      agent: the agent, whose variables are overwritten with the learner's parameters.
      spec: the level's specification.
      num_envs: N.
      seed: the seed for sampling actions.
      epsilons: float32 [N], the epsilon of each environment, if the agent has Q-values.
    """

    def __init__(
        self,
        agent: Agent,
        spec: EnvironmentSpec,
        num_envs: int,
        seed: int,
        epsilons: np.ndarray | None = None,
    ) -> None:
        distribution = None
        if epsilons is not None:
            distribution = EpsilonGreedy(agent.distribution.num_logits, epsilons)
        self._variables = agent.variables
        self._policy = compile_policy(agent, spec, num_envs, seed, distribution=distribution)

    def set_parameters(self, arrays: list[np.ndarray]) -> None:
        """See `acting.Network`."""
        for variable, array in zip(self._variables, arrays, strict=True):
            variable.assign(array)

    def answer(self, env_output: EnvOutput, core_state: Nest) -> tuple[AgentOutput, Nest]:
        """See `acting.Network`."""
        state = tf.nest.map_structure(tf.convert_to_tensor, core_state)
        answer, core_state = self._policy(env_output, state)
        return AgentOutput(answer.action.numpy(), answer.policy_logits.numpy()), core_state
