"""The loss of a batch, whichever algorithm makes its parts (paper, section 4.2)."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from impala_tf.config import LossConfig
from impala_tf.learner.algorithms import appo, impala, ppo
from impala_tf.learner.algorithms.transitions import Estimates, Objective, Transitions


class Scales(NamedTuple):
    """Running statistics and schedules that the loss depends on; float32 scalars."""

    entropy_cost: tf.Tensor | float
    advantage_rms: tf.Tensor | float = 1.0  # advantages are divided by it if scaled by "rms"
    value_std: tf.Tensor | float = 1.0  # value errors are divided by it; scalar or [B]
    # Sums of value targets are of their differences from these, so that float32 keeps the digits.
    value_mean: tf.Tensor | float = 0.0  # scalar or [B]
    value_center: tf.Tensor | float = 0.0  # the same for all of a batch


class Losses(NamedTuple):
    """Scalars, float32, but for the last two. `total` is minimised.

    The losses are not weighted by their costs. They are sums over time and batch, or means, as
    --loss_reduction says. All fields of the parts of a batch add up to those of the whole batch, if
    the parts are told its number of valid steps.
    """

    total: tf.Tensor
    policy_gradient: tf.Tensor  # minus the policy's objective
    baseline: tf.Tensor  # half the squared error of V(x), divided by the scale's value_std
    entropy: tf.Tensor  # mean entropy of pi, in nats, over the valid steps
    kl: tf.Tensor  # mean KL divergence of pi from the policy that acted, in nats
    rho_clip_fraction: tf.Tensor  # fraction of the steps with pi/mu above rho-bar
    c_clip_fraction: tf.Tensor  # fraction of the steps with pi/mu above c-bar
    surrogate_clip_fraction: tf.Tensor  # fraction of the steps without a policy gradient
    value_error: tf.Tensor  # mean squared difference of the value targets and V(x)
    steps: tf.Tensor  # number of valid steps
    squared_advantages: tf.Tensor  # sum over the valid steps, before scaling
    # How many value targets, the sum of their differences from a field of Scales, that of squares.
    value_sums: tf.Tensor  # float32 [3, B]: from value_mean
    target_sums: tf.Tensor  # float32 [3]: from value_center


def compute(
    steps: Transitions,
    config: LossConfig,
    scales: Scales,
    target_log_probs: tf.Tensor | None = None,
    prepared: tuple[Estimates, tf.Tensor] | None = None,
    valid_steps: tf.Tensor | None = None,
) -> Losses:
    """Returns the losses of a batch, or of a part of it.

    Args:
      steps: [T, B].
      config: resolved.
      scales: see `Scales`.
      target_log_probs: of appo's target network [T, B], if it has one.
      prepared: ppo's estimates and values from before the batch's first step, [T, B].
      valid_steps: of the whole batch, float32; None: this is the whole batch.
    """
    weight = tf.cast(steps.valid, tf.float32)
    own_steps = tf.reduce_sum(weight)
    count = tf.maximum(own_steps if valid_steps is None else valid_steps, 1.0)

    def mean(tensor: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(weight * tf.cast(tensor, tf.float32)) / count

    found = _estimates(steps, config, target_log_probs, prepared)
    advantages = _scaled(found.advantages, weight, config.advantage_scaling, scales.advantage_rms)
    objective = _objective(steps, advantages, config, target_log_probs)
    targets = found.value_targets
    errors = _squared_value_errors(steps, targets, config, scales, prepared)
    reduction = count if config.loss_reduction == "mean" else 1.0
    policy_gradient = -tf.reduce_sum(weight * objective.values) / reduction
    baseline = 0.5 * tf.reduce_sum(weight * errors) / reduction
    entropies = tf.reduce_sum(weight * steps.entropy)
    total = (
        policy_gradient
        + config.baseline_cost * baseline
        - scales.entropy_cost * entropies / reduction
    )
    ratios = tf.exp(steps.log_probs - steps.behaviour_log_probs)
    return Losses(
        total=total,
        policy_gradient=policy_gradient,
        baseline=baseline,
        entropy=entropies / count,
        kl=mean(steps.kl),
        rho_clip_fraction=mean(ratios > config.clip_rho_threshold),
        c_clip_fraction=mean(ratios > config.clip_c_threshold),
        surrogate_clip_fraction=mean(objective.clipped),
        value_error=mean(tf.square(targets - steps.values)),
        steps=own_steps,
        squared_advantages=tf.reduce_sum(weight * tf.square(found.advantages)),
        value_sums=_sums(weight, targets - scales.value_mean),
        target_sums=tf.reduce_sum(_sums(weight, targets - scales.value_center), axis=1),
    )


def _sums(weight: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """Returns count, sum and sum of squares over the time of [T, B], float32 [3, B]."""
    return tf.reduce_sum(
        weight * tf.stack([tf.ones_like(weight), values, tf.square(values)]), axis=1
    )


def explained_variance(value_error: tf.Tensor, target_sums: tf.Tensor) -> tf.Tensor:
    """Returns how much of the value targets' variance V(x) explains; 1: a perfect baseline.

    Args:
      value_error: of `Losses`.
      target_sums: float32 [3]: of `Losses`.
    """
    count, total, squares = tf.unstack(target_sums)
    count = tf.maximum(count, 1.0)
    variance = squares / count - tf.square(total / count)
    return 1.0 - value_error / tf.maximum(variance, 1e-8)


def _estimates(
    steps: Transitions,
    config: LossConfig,
    target_log_probs: tf.Tensor | None,
    prepared: tuple[Estimates, tf.Tensor] | None,
) -> Estimates:
    if prepared is not None:
        return prepared[0]
    if config.algorithm == "appo":
        return appo.estimate(steps, config, target_log_probs)
    return impala.estimate(steps, config)


def _objective(
    steps: Transitions,
    advantages: tf.Tensor,
    config: LossConfig,
    target_log_probs: tf.Tensor | None,
) -> Objective:
    if config.algorithm == "ppo":
        return ppo.objective(steps, advantages, config)
    if config.algorithm == "appo":
        return appo.objective(steps, advantages, config, target_log_probs)
    return impala.objective(steps, advantages)


def _squared_value_errors(
    steps: Transitions,
    targets: tf.Tensor,
    config: LossConfig,
    scales: Scales,
    prepared: tuple[Estimates, tf.Tensor] | None,
) -> tf.Tensor:
    values, targets = steps.values / scales.value_std, targets / scales.value_std
    if prepared is None:
        return tf.square(targets - values)
    old_values = prepared[1] / scales.value_std
    return ppo.squared_value_errors(values, targets, old_values, config.value_clipping)


def _scaled(
    advantages: tf.Tensor, weight: tf.Tensor, scaling: str, rms: tf.Tensor | float
) -> tf.Tensor:
    if scaling == "rms":
        return advantages / rms
    if scaling == "batch":
        count = tf.maximum(tf.reduce_sum(weight), 1.0)
        centered = advantages - tf.reduce_sum(weight * advantages) / count
        std = tf.sqrt(tf.reduce_sum(weight * tf.square(centered)) / count)
        return centered / (std + 1e-8)
    return advantages
