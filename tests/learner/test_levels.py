"""One agent that learns several levels: a baseline and statistics of values for each."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from impala_tf import config as configs
from impala_tf.agents.agent import agent_of, unroll_specs
from impala_tf.agents.networks import Heads
from impala_tf.config import Given
from impala_tf.environments.observations import layout_of
from impala_tf.learner.group import LearnerGroup
from impala_tf.learner.policy import PolicyGradients
from impala_tf.learner.statistics import RunningMoments
from impala_tf.learner.transitions import Minibatch
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


def test_statistics_of_a_level_are_those_of_its_values() -> None:
    """By hand: the mean of 4 and 6 is 5, their deviation 1; of 100 and 300, 200 and 100."""
    heads = Heads(ActionSpec("discrete", (4,)), 4, num_levels=3)
    inputs = tf.constant([[1.0, -1.0], [2.0, 0.5]])
    before = heads(inputs).baseline.numpy()
    moments = RunningMoments(0.999, 3)
    moments.add(
        tf.constant([2.0, 2.0, 0.0]),
        tf.constant([10.0, 400.0, 0.0]),
        tf.constant([16.0 + 36.0, 1e4 + 9e4, 0.0]),
    )
    heads.set_unit(moments.mean, moments.std)
    np.testing.assert_allclose(heads.unit.std, [1.0, 100.0, 1.0], rtol=1e-4)
    np.testing.assert_allclose(heads.unit.mean, [5.0, 200.0, 0.0], rtol=1e-5)
    # PopArt: outputs in units of the rewards are what they were.
    np.testing.assert_allclose(heads(inputs).baseline, before, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("algorithm", ["impala", "appo", "ppo"])
def test_values_of_each_level_are_normalised_by_its_own_statistics(algorithm: str) -> None:
    one = learner(algorithm=algorithm, value_normalization="running", minibatches=1)
    rewards = np.array([1.0, 1.2, 0.8, 100.0, 120.0, 80.0])
    stats = one.update(batch(one.agent, rewards, [0, 0, 0, 2, 2, 2]))
    assert stats is not None and np.isfinite(stats).all()
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
    policy = PolicyGradients(one.agent, layout_of(SPEC), config, 0.0)
    index = next(
        k for k, each in enumerate(one.agent.trainable_variables) if each.shape[1:] == (4,)
    )
    found = [policy.of_batch(Minibatch(each))[0][index].numpy() for each in (small, large)]
    assert np.abs(found[0]).max() > 1e-3
    np.testing.assert_allclose(found[0], found[1], rtol=1e-4, atol=1e-7)


def test_an_update_changes_only_the_baselines_of_the_levels_in_the_batch() -> None:
    one = learner(value_normalization="none")
    (weights,) = (v for v in one.agent.trainable_variables if v.shape[1:] == (3,))
    before = weights.numpy()
    one.update(batch(one.agent, np.ones(B), [0, 0, 0, 2, 2, 2]))
    moved = np.any(before != weights.numpy(), axis=0)
    assert moved.tolist() == [True, False, True]
