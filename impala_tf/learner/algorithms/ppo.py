"""PPO (Schulman et al., 2017, arXiv 1707.06347), with GAE (arXiv 1506.02438)."""

from __future__ import annotations

import tensorflow as tf

from impala_tf.config import LossConfig
from impala_tf.learner.algorithms import appo
from impala_tf.learner.algorithms.transitions import Estimates, Objective, Transitions
from impala_tf.learner.vtrace import discounted_sums


def estimate(steps: Transitions, config: LossConfig) -> Estimates:
    """Returns the generalised advantage estimates (equations 11 and 12) and A + V [T, B].

    Where no transition happened (an environment reset), the advantage is 0, and it does not reach
    earlier steps.
    """
    values = tf.stop_gradient(steps.values)
    bootstrap = tf.stop_gradient(steps.bootstrap_value)
    valid = tf.cast(steps.valid, tf.float32)
    values_t_plus_1 = tf.concat([values[1:], bootstrap[None]], axis=0)
    deltas = valid * (steps.rewards + steps.discounts * values_t_plus_1 - values)
    advantages = discounted_sums(deltas, valid * steps.discounts * config.gae_lambda)
    return Estimates(advantages, advantages + values)


def objective(steps: Transitions, advantages: tf.Tensor, config: LossConfig) -> Objective:
    """Returns the clipped surrogate (equation 7) with the ratio to the policy that acted."""
    epsilon = config.surrogate_clipping
    return appo.clipped_surrogate(appo.ratio(steps), advantages, epsilon)


def squared_value_errors(
    values: tf.Tensor, targets: tf.Tensor, old_values: tf.Tensor, limit: float
) -> tf.Tensor:
    """Returns squared errors; a value more than `limit` from its old one gains nothing.

    The larger of the errors of V and of V clipped to the old value +- limit, as in OpenAI
    Baselines; all [T, B]. A limit of 0 clips nothing.
    """
    errors = tf.square(targets - values)
    if limit == 0.0:
        return errors
    clipped = old_values + tf.clip_by_value(values - old_values, -limit, limit)
    return tf.maximum(errors, tf.square(targets - clipped))
