"""Actions drawn with NumPy follow the distributions that the learner computes with."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from impala_tf.agents.distributions import distribution_of
from impala_tf.agents.sampling import epsilon_greedy_of, greedy_of, sampler_of
from impala_tf.types import ActionSpec

COUNT = 40_000


def assert_as_often_as(found: np.ndarray, probabilities: np.ndarray) -> None:
    """Asserts frequencies within four standard deviations."""
    deviation = np.sqrt(probabilities * (1 - probabilities) / COUNT)
    assert np.all(np.abs(found - probabilities) < 4 * deviation + 1e-12)


@pytest.mark.parametrize(
    ("actions", "logits"),
    [
        (ActionSpec("discrete", (4,)), [0.0, 1.0, -2.0, 0.5]),
        (ActionSpec("discrete", (4,)), [-1e4, 1e4, 0.0, -1e30]),
        (ActionSpec("multi_discrete", (3, 2)), [0.0, 1.0, -1.0, 0.5, -0.5]),
    ],
    ids=str,
)
def test_actions_are_drawn_as_often_as_their_probability_says(
    actions: ActionSpec, logits: list[float]
) -> None:
    """V-trace divides by these probabilities, so biased draws would bias every gradient."""
    many = np.tile(np.array(logits, np.float32), (COUNT, 1))
    first, again = (sampler_of(actions, np.random.default_rng(1))(many) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    every = np.array(list(np.ndindex(actions.sizes)), np.int32).reshape(-1, *actions.shape)
    log_prob = distribution_of(actions).log_prob(many[: len(every)], every)
    drawn = first.reshape(COUNT, -1)
    found = np.array([np.mean((drawn == each).all(axis=1)) for each in every])
    assert_as_often_as(found, np.exp(log_prob))


def test_continuous_actions_have_the_mean_and_the_spread_of_the_policy() -> None:
    """Standard deviations outside of the policy's limits are those limits."""
    sample = sampler_of(ActionSpec("continuous", (3,)), np.random.default_rng(1))
    found = sample(np.tile(np.array([0.5, -1.0, 0.0, -1.0, 0.3, 9.0], np.float32), (COUNT, 1)))
    for column, mean, log_std in zip(found.T, (0.5, -1.0, 0.0), (-1.0, 0.3, 2.0), strict=True):
        normal = scipy.stats.norm(mean, np.exp(log_std))
        assert scipy.stats.kstest(column, normal.cdf).pvalue > 1e-4
    assert found.dtype == np.float32


@pytest.mark.parametrize(
    ("actions", "num_logits"),
    [
        (ActionSpec("discrete", (4,)), 4),
        (ActionSpec("multi_discrete", (3, 2)), 5),
        (ActionSpec("continuous", (3,)), 6),
    ],
    ids=str,
)
def test_greedy_actions_are_the_most_likely_ones(actions: ActionSpec, num_logits: int) -> None:
    """An exported agent must play as its checkpoint does."""
    logits = np.random.default_rng(0).normal(size=(50, num_logits)).astype(np.float32)
    found = greedy_of(actions)(logits)
    wanted = distribution_of(actions).mode(logits).numpy()
    np.testing.assert_array_equal(found, wanted)
    assert (found.shape, found.dtype) == ((50, *actions.shape), actions.dtype)


def test_one_action_in_a_hundred_is_any_if_there_are_q_values() -> None:
    sample = epsilon_greedy_of(ActionSpec("discrete", (4,)), np.random.default_rng(1))
    found = sample(np.tile(np.array([0, 3, 1, 2], np.float32), (COUNT, 1)))
    assert_as_often_as(
        np.bincount(found, minlength=4) / COUNT, np.array([0.0025, 0.9925, 0.0025, 0.0025])
    )
    assert found.dtype == np.int32
