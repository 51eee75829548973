"""Agents: unrolling equals stepping, and what an agent sees of the previous step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from impala_tf.agents.agent import Agent, unroll_specs
from impala_tf.config import AGENTS, ConfigError
from impala_tf.types import EnvironmentSpec, EnvOutput, Nest, NetworkOutput
from tests.helpers.agents import ATARI, NETWORKS, VECTORS, make_agent, spec_for
from tests.helpers.samples import image_spec, steps


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
    """A layer without one would keep its first weights, and the rest would train around it."""
    spec = spec_for(network["agent_name"])
    agent = trained(make_agent(spec=spec, **network))
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


@pytest.mark.parametrize(
    "agent_name", [name for name in AGENTS if not AGENTS[name].observes_last_action_and_reward]
)
def test_other_agents_see_only_the_observation(agent_name: str) -> None:
    """Otherwise they would not be the networks of the papers."""
    spec = spec_for(agent_name)
    agent = trained(make_agent(agent_name, spec))
    step = steps(spec, (2,))
    other = steps(spec, (2,), seed=1)._replace(observation=step.observation)
    # MLPLSTMAgent and the like depend on episode_start through their core.
    other = other._replace(episode_start=step.episode_start)
    state = agent.initial_state(2)
    assert_same(agent.step(step, state)[0], agent.step(other, state)[0])


@pytest.mark.parametrize(
    "agent_name", ["ShallowConvNetLSTMAgent", "SimpleConvNetAgent", "ResNetAgent", "ImpoolaAgent"]
)
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


def test_actors_get_everything_that_training_changes() -> None:
    """They assign the trainable variables; other variables would stay as they were."""
    for agent_name in AGENTS:
        agent = make_agent(agent_name, spec_for(agent_name))
        assert len(agent.variables) == len(agent.trainable_variables) > 0


@pytest.mark.parametrize(
    ("agent_name", "spec", "takes", "fitting"),
    [
        ("MLPAgent", ATARI, "takes vectors", "SimpleConvNetAgent"),
        ("ResNetLSTMAgent", VECTORS, "takes images", "MLPLSTMAgent"),
    ],
)
def test_an_agent_that_does_not_fit_the_level_is_refused(
    agent_name: str, spec: EnvironmentSpec, takes: str, fitting: str
) -> None:
    """Otherwise users would get an error about matrix shapes, long after the launch."""
    with pytest.raises(ConfigError) as caught:
        make_agent(agent_name, spec)
    (line,) = caught.value.problems
    assert line.startswith(f"--agent_name={agent_name}: {takes}")
    assert spec.level_name in line
    assert fitting in line and f"use one of {agent_name}" not in line


@pytest.mark.parametrize(("stacked_frames", "observation"), [(4, (9, 84, 84)), (0, (6, 84, 84, 4))])
def test_unroll_specs_describe_what_is_sent(
    stacked_frames: int, observation: tuple[int, ...]
) -> None:
    """Queue, codec and the actor's buffer depend on them: T + 1 steps, each frame once."""
    spec = image_spec((84, 84, 4), stacked_frames)
    agent = make_agent("ShallowConvNetLSTMAgent", spec)
    specs = unroll_specs(agent, spec, unroll_length=5)
    assert specs.parameter_version == tf.TensorSpec((), tf.int64)
    assert [part.shape for part in specs.core_state] == [(256,), (256,)]
    assert specs.env_outputs.observation == tf.TensorSpec(observation, tf.uint8)
    for name in EnvOutput._fields:
        assert getattr(specs.env_outputs, name).shape[0] == (
            9 if name == "observation" and stacked_frames else 6
        )
    assert specs.agent_outputs.action == tf.TensorSpec((5,), tf.int32)
    assert specs.agent_outputs.policy_logits == tf.TensorSpec((5, 4), tf.float32)
