"""One agent that learns several levels: a baseline and statistics of values for each."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from impala_tf import config as configs
from impala_tf.agents.agent import agent_of, unroll_specs
from impala_tf.config import Given
from impala_tf.environments.observations import layout_of
from impala_tf.learner.batch_uses import Minibatch
from impala_tf.learner.learner_group import LearnerGroup
from impala_tf.learner.policy_step import PolicyStep
from impala_tf.learner.update import Learner
from impala_tf.types import ActionSpec, EnvironmentSpec, ObservationSpec, Unroll
from tests.helpers.unrolls import random_unrolls

SPEC = EnvironmentSpec(
    "A,B,C", "vector", ObservationSpec("vector", (3,)), ActionSpec("discrete", (4,)), 0, 1, "",
    ("A", "B", "C"),
)  # fmt: skip
B, T = 6, 5


def learner(**flags: object) -> Learner:
    given = {"batch_size": B, "unroll_length": T, "ring_batches": 1, "updates_per_batch": 1}
    config = configs.resolve(Given().replace(**{**given, **flags}), "vector")
    return Learner(agent_of(config.agent, SPEC), SPEC, config, LearnerGroup())


def batch(agent: object, rewards: np.ndarray, levels: list[int]) -> Unroll:
    """Every step ends an episode, so a step's value target is the reward that follows it."""
    found = random_unrolls(unroll_specs(agent, SPEC, T), B)  # type: ignore[arg-type]
    never = np.zeros((B, T + 1), bool)
    env_outputs = found.env_outputs._replace(
        reward=np.broadcast_to(rewards[:, None], (B, T + 1)).astype(np.float32),
        terminated=~never,
        truncated=never,
        autoreset=never,
        episode_start=~never,
    )
    agent_outputs = found.agent_outputs._replace(policy_logits=np.zeros((B, T, 4), np.float32))
    changed = found._replace(
        env_outputs=env_outputs, agent_outputs=agent_outputs, level=np.array(levels, np.int32)
    )
    return tf.nest.map_structure(tf.constant, changed)


@pytest.mark.parametrize("algorithm", ["impala", "ppo"])
def test_values_of_each_level_are_normalised_by_its_own_statistics(algorithm: str) -> None:
    one = learner(algorithm=algorithm, value_normalization="running", minibatches=1)
    rewards = np.array([1.0, 1.2, 0.8, 100.0, 120.0, 80.0])
    one.update(batch(one.agent, rewards, [0, 0, 0, 2, 2, 2]))
    unit = one.agent.policy_heads.unit
    # The targets come from V-trace or GAE; with ratios near 1, they are near the rewards.
    np.testing.assert_allclose(unit.mean, [1.0, 0.0, 100.0], rtol=0.05)
    np.testing.assert_allclose(unit.std, [0.163, 1.0, 16.3], rtol=0.1)


def test_a_level_teaches_the_policy_as_much_as_one_with_smaller_rewards() -> None:
    """Rewards of one are 100 times those of the other, and its values are normalised so, too."""
    one = learner(value_normalization="running")
    config = configs.resolve(Given().replace(batch_size=B, unroll_length=T), "vector")
    for variable in one.agent.policy_heads.variables:
        if "baseline" in variable.name:
            variable.assign(tf.zeros_like(variable))
    one.agent.policy_heads.unit.assign(tf.zeros(3), tf.constant([1.0, 1.0, 100.0]))
    small = batch(one.agent, np.linspace(-1.0, 1.0, B), [0] * B)
    reward = 100.0 * small.env_outputs.reward
    large = small._replace(
        env_outputs=small.env_outputs._replace(reward=reward), level=tf.fill([B], 2)
    )
    policy = PolicyStep(one.agent, layout_of(SPEC), config, LearnerGroup())
    index = next(
        k for k, each in enumerate(one.agent.trainable_variables) if each.shape[1:] == (4,)
    )
    found = [policy.gradients_of(Minibatch(each))[0][index].numpy() for each in (small, large)]
    assert np.abs(found[0]).max() > 1e-3
    np.testing.assert_allclose(found[0], found[1], rtol=1e-4, atol=1e-7)


def test_with_one_level_advantages_are_not_in_the_unit_of_its_values() -> None:
    """Else the policy's gradient would change its size against the entropy bonus."""
    one_level = SPEC._replace(level_name="A", tasks=())
    config = configs.resolve(Given().replace(batch_size=B, unroll_length=T), "vector")
    config = configs.replace(config, advantage_scaling="none")
    agent = agent_of(config.agent, one_level)
    policy = PolicyStep(agent, layout_of(one_level), config, LearnerGroup())
    unrolls = random_unrolls(unroll_specs(agent, one_level, T), B)
    found = []
    for std in (1.0, 100.0):
        agent.policy_heads.set_unit(tf.constant(0.0), tf.constant(std))  # V stays as it is
        loss = policy.gradients_of(Minibatch(tf.nest.map_structure(tf.constant, unrolls)))[1]
        found.append(float(loss.policy_gradient))
    assert found[0] == pytest.approx(found[1], rel=1e-3) != 0.0
