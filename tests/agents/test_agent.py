"""Agents: unrolling equals stepping, and what an agent sees of the previous step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from impala_tf.agents.agent import Agent
from impala_tf.config import AGENTS
from impala_tf.types import Nest, NetworkOutput
from tests.helpers.agents import NETWORKS, make_agent, spec_for
from tests.helpers.samples import steps


def trained(agent: Agent) -> Agent:
    """Moves every variable, including biases, away from its initial value."""
    rng = np.random.default_rng(0)
    for variable in agent.trainable_variables:
        variable.assign_add(0.05 * rng.normal(size=variable.shape))
    return agent


def at(nest: Nest, index: int) -> Nest:
    return tf.nest.map_structure(lambda t: t[index], nest)


def assert_same(got: Nest, expected: Nest) -> None:
    tf.nest.assert_same_structure(got, expected)
    for one, other in zip(tf.nest.flatten(got), tf.nest.flatten(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("network", NETWORKS, ids=lambda each: "-".join(map(str, each.values())))
def test_unrolling_equals_stepping_across_episodes(network: dict[str, Any]) -> None:
    """Otherwise the learner would correct for a policy that no actor followed."""
    spec = spec_for(network["agent_name"])
    agent = trained(make_agent(spec=spec, **network))
    env_outputs = steps(spec, (5, 2))
    start = env_outputs.episode_start.numpy()
    assert start[1:].any() and not start.all()
    state = tf.nest.map_structure(
        lambda zeros: tf.random.stateless_normal(zeros.shape, (1, 2)), agent.initial_state(2)
    )

    unrolled, state_after = agent.unroll(env_outputs, state)

    for t in range(5):
        stepped, state = agent.step(at(env_outputs, t), state)
        assert stepped.policy_logits.shape == (2, spec.actions.sizes[0])
        assert stepped.baseline.shape == (2, 1)
        assert_same(at(unrolled, t), stepped)
    assert_same(state_after, state)


@pytest.mark.parametrize("network", NETWORKS, ids=lambda each: "-".join(map(str, each.values())))
def test_a_gradient_reaches_every_variable(network: dict[str, Any]) -> None:
    """A layer without one would keep its first weights, and the rest would train around it.

    Actors assign the trainable variables, so there must not be others.
    """
    spec = spec_for(network["agent_name"])
    agent = trained(make_agent(spec=spec, **network))
    assert len(agent.variables) == len(agent.trainable_variables) > 0
    env_outputs = steps(spec, (3, 2))
    with tf.GradientTape() as tape:
        outputs, _ = agent.unroll(env_outputs, agent.initial_state(2))
        total = sum(tf.reduce_sum(part**2) for part in outputs)
    for variable, gradient in zip(
        agent.trainable_variables, tape.gradient(total, agent.trainable_variables), strict=True
    ):
        assert gradient is not None, variable.name
        assert np.any(tf.convert_to_tensor(gradient)), variable.name


@pytest.mark.parametrize(
    "agent_name", [name for name in AGENTS if AGENTS[name].observes_last_action_and_reward]
)
def test_last_action_and_reward_are_seen_only_inside_an_episode(agent_name: str) -> None:
    """The end of the last game says nothing about the next one."""
    spec = spec_for(agent_name)
    agent = trained(make_agent(agent_name, spec))

    def logits(start: bool, reward: float, last_action: int) -> np.ndarray:
        step = steps(spec, (1,))._replace(
            episode_start=tf.constant([start]),
            reward=tf.constant([reward]),
            last_action=tf.constant([last_action]),
        )
        return agent.step(step, agent.initial_state(1))[0].policy_logits.numpy()

    inside = logits(False, 0.5, 1)
    assert np.abs(logits(False, 0.5, 2) - inside).max() > 1e-4
    assert np.abs(logits(False, -0.5, 1) - inside).max() > 1e-4
    np.testing.assert_array_equal(logits(True, 0.5, 1), logits(True, -0.7, 2))
    # Clipped on both sides, so that large scores do not dominate the features.
    np.testing.assert_array_equal(logits(False, 1.0, 1), logits(False, 40.0, 1))
    np.testing.assert_array_equal(logits(False, -1.0, 1), logits(False, -40.0, 1))
    assert np.abs(logits(False, 1.0, 1) - logits(False, -1.0, 1)).max() > 1e-4


@pytest.mark.parametrize("agent_name", ["ShallowConvNetLSTMAgent", "ResNetAgent"])
def test_a_bfloat16_torso_is_the_same_network_with_float32_parameters(agent_name: str) -> None:
    """bfloat16 parameters would lose small steps, and checkpoints must stay compatible."""
    spec = spec_for(agent_name)
    tf.random.set_seed(1)
    full, half = make_agent(agent_name, spec), make_agent(agent_name, spec, "bfloat16")
    for ours, theirs in zip(half.variables, full.variables, strict=True):
        assert ours.dtype == tf.float32
        ours.assign(theirs)
    env_outputs = steps(spec, (3, 2))

    def gradients(agent: Agent) -> tuple[NetworkOutput, list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            outputs, _ = agent.unroll(env_outputs, agent.initial_state(2))
            total = tf.reduce_sum(outputs.policy_logits) + tf.reduce_sum(outputs.baseline**2)
        return outputs, tape.gradient(total, agent.trainable_variables)

    before = gradients(full)
    got = tf.function(gradients, autograph=False)(half)
    assert_same(gradients(full), before)  # the float32 agent is unchanged
    for part, part_before in zip(got, before, strict=True):
        assert {tensor.dtype for tensor in part} == {tf.float32}
        off = tf.linalg.global_norm([a - b for a, b in zip(part, part_before, strict=True)])
        assert off <= 0.1 * tf.linalg.global_norm(part_before)
    assert np.abs(got[0].policy_logits - before[0].policy_logits).max() > 0
