"""Cores and heads: memory, and where it ends."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from impala_tf.agents import networks


def test_the_lstm_state_is_reset_where_an_episode_starts_and_nowhere_else() -> None:
    """Otherwise memory of one game would reach the next, or be lost inside a game."""
    core = networks.LSTMCore()
    features = tf.random.stateless_normal((4, 2, 3), seed=(0, 1))
    start = np.zeros((4, 2), np.bool_)
    start[2, 0] = True  # in the first of two environments
    before = tuple(tf.random.stateless_normal((2, networks.LSTM_SIZE), (0, k)) for k in range(2))

    outputs, after = core(features, tf.constant(start), before)

    fresh, fresh_after = core(features[2:], tf.zeros((2, 2), tf.bool), core.initial_state(2))
    unbroken, unbroken_after = core(features, tf.zeros((4, 2), tf.bool), before)
    np.testing.assert_allclose(outputs[2:, 0], fresh[:, 0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(outputs[:, 1], unbroken[:, 1], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(outputs[:2, 0], unbroken[:2, 0], rtol=1e-5, atol=1e-6)
    assert np.abs(outputs[2:, 0] - unbroken[2:, 0]).max() > 0.01
    for part, of_fresh, of_unbroken in zip(after, fresh_after, unbroken_after, strict=True):
        np.testing.assert_allclose(part[0], of_fresh[0], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(part[1], of_unbroken[1], rtol=1e-5, atol=1e-6)


def test_lstm_gradients_reach_back_to_the_start_of_the_episode() -> None:
    """Without them it would not learn to remember; gradients from other games are noise."""
    core = networks.LSTMCore()
    features = tf.random.stateless_normal((4, 1, 3), seed=(0, 1))
    start = tf.constant([[False], [False], [True], [False]])
    for step, seen in ((3, [False, False, True, True]), (1, [True, True, False, False])):
        with tf.GradientTape() as tape:
            tape.watch(features)
            outputs, _ = core(features, start, core.initial_state(1))
            last = tf.reduce_sum(outputs[step])
        gradient = tape.gradient(last, features)
        assert [bool(tf.reduce_any(g != 0)) for g in gradient] == seen
