"""How actions are chosen from logits."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from impala_tf.agents.policy import greedy_actions, sample_actions

LOGITS = [[0.0, 1.0, -2.0, 0.5], [3.0, 3.0, -50.0, 1.0]]


def draws(seed: int, count: int, logits: list[list[float]] = LOGITS) -> np.ndarray:
    """Returns `count` actions for every row of `logits`, [count, N]."""
    generator = tf.random.Generator.from_seed(seed)
    tiled = tf.tile(tf.constant(logits), [count, 1])
    actions = sample_actions(tiled, generator)
    assert actions.dtype == tf.int32
    return actions.numpy().reshape(count, len(logits))


def test_actions_are_drawn_from_the_softmax() -> None:
    """V-trace divides by these probabilities, so biased draws would bias every gradient."""
    count = 50_000
    actions = draws(seed=1, count=count)
    for row, logits in enumerate(LOGITS):
        probabilities = np.exp(logits) / np.exp(logits).sum()
        found = np.bincount(actions[:, row], minlength=4) / count
        deviation = np.sqrt(probabilities * (1 - probabilities) / count)
        assert np.all(np.abs(found - probabilities) < 4 * deviation + 1e-12)
    # The environments of a batch draw independently.
    both = np.mean((actions == 1).all(axis=1))
    expected = np.mean(actions[:, 0] == 1) * np.mean(actions[:, 1] == 1)
    assert abs(both - expected) < 4 * np.sqrt(expected / count)


def test_a_policy_without_randomness_is_followed() -> None:
    """Extreme logits must not give NaN or another action."""
    certain = [[-1e4, 0.0, 1e4, 0.0], [200.0, -200.0, 0.0, -1e30]]
    assert np.all(draws(seed=2, count=2_000, logits=certain) == [2, 0])


def test_draws_repeat_with_the_seed_and_differ_from_call_to_call() -> None:
    """--seed must repeat a run, and an actor must not draw the same number at every step."""
    np.testing.assert_array_equal(draws(seed=3, count=500), draws(seed=3, count=500))
    assert np.any(draws(seed=3, count=500) != draws(seed=4, count=500))
    generator = tf.random.Generator.from_seed(3)
    logits = tf.zeros((200, 4))
    first, second = (sample_actions(logits, generator).numpy() for _ in range(2))
    assert np.any(first != second)


def test_greedy_actions_are_the_most_likely_ones() -> None:
    actions = greedy_actions(tf.constant([[0.0, 2.0, 1.0], [5.0, -1.0, 4.9]]))
    assert actions.dtype == tf.int32
    assert actions.numpy().tolist() == [1, 0]
