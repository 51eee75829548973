"""Double DQN (van Hasselt et al., 2016, arXiv 1509.06461) with the n-step returns of Ape-X."""

from __future__ import annotations

import tensorflow as tf


def targets(
    returns: tf.Tensor,
    discounts: tf.Tensor,
    next_q_values: tf.Tensor,
    next_target_q_values: tf.Tensor,
) -> tf.Tensor:
    """Returns what Q(x, a) should be: R + gamma^m Q'(x', argmax_a Q(x', a)), float32 [B].

    No gradient flows through it.

    Args:
      returns: R, float32 [B]; see `returns.NStepReturns`.
      discounts: gamma^m, or 0 where an episode terminated, float32 [B].
      next_q_values: Q(x', .) of the network that is learned, float32 [B, A].
      next_target_q_values: Q'(x', .) of the target network, float32 [B, A].
    """
    best = tf.argmax(next_q_values, axis=-1, output_type=tf.int32)
    return tf.stop_gradient(returns + discounts * of_actions(next_target_q_values, best))


def of_actions(q_values: tf.Tensor, actions: tf.Tensor) -> tf.Tensor:
    """Returns Q(x, a), float32 [B], of q_values [B, A] and actions int32 [B]."""
    return tf.gather(q_values, actions, batch_dims=1)


def huber(errors: tf.Tensor) -> tf.Tensor:
    """Returns half the square of errors up to 1, beyond that their distance from a half.

    Its gradient is the error, clipped to [-1, 1] (Mnih et al., 2015, "Human-level control").
    """
    size = tf.abs(errors)
    inside = tf.minimum(size, 1.0)
    return inside * (size - 0.5 * inside)
