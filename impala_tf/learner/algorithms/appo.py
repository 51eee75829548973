"""APPO: V-trace advantages in a clipped surrogate (Luo et al., 2020, IMPACT, arXiv 1912.00167).

With A the V-trace advantage, mu the policy that acted and pi the one that is learned:

* Without a target network, the surrogate is min(r A, clip(r) A) with r = pi / mu. V-trace has
  already weighted A by min(rho-bar, r), so it is divided by r here (without a gradient). What is
  not clipped has IMPALA's gradient; so without clipping, this is IMPALA.
* With one, A is that of the target network's policy pi', and r = min(2, mu / pi') pi / mu: the
  ratio of pi to pi', unless the actor's policy is very different (IMPACT, section 3).
"""

from __future__ import annotations

import tensorflow as tf

from impala_tf.config import LossConfig
from impala_tf.learner.algorithms import impala
from impala_tf.learner.algorithms.transitions import Estimates, Objective, Transitions

_MAX_TARGET_WEIGHT = 2.0  # of mu / pi', as in IMPACT's experiments
_MAX_LOG_RATIO = 20.0  # keeps ratios finite


def estimate(
    steps: Transitions, config: LossConfig, target_log_probs: tf.Tensor | None = None
) -> Estimates:
    """Returns V-trace's estimates for the target network's policy; without one, for pi."""
    return impala.estimate(steps, config, target_log_probs)


def objective(
    steps: Transitions,
    advantages: tf.Tensor,
    config: LossConfig,
    target_log_probs: tf.Tensor | None = None,
) -> Objective:
    """Returns the clipped surrogate.

    Args:
      steps: [T, B].
      advantages: of `estimate`, perhaps scaled, [T, B].
      config: resolved.
      target_log_probs: log pi'(a|x) [T, B]; None: no target network.
    """
    ratios = ratio(steps)
    if target_log_probs is None:
        advantages = advantages / tf.stop_gradient(ratios)
    else:
        weight = tf.exp(steps.behaviour_log_probs - tf.stop_gradient(target_log_probs))
        ratios *= tf.minimum(weight, _MAX_TARGET_WEIGHT)
    return clipped_surrogate(ratios, advantages, config.surrogate_clipping)


def ratio(steps: Transitions) -> tf.Tensor:
    """Returns pi(a|x) / mu(a|x), float32 [T, B]."""
    log_ratios = steps.log_probs - steps.behaviour_log_probs
    return tf.exp(tf.clip_by_value(log_ratios, -_MAX_LOG_RATIO, _MAX_LOG_RATIO))


def clipped_surrogate(ratios: tf.Tensor, advantages: tf.Tensor, epsilon: float) -> Objective:
    """Returns min(r A, clip(r, 1 - epsilon, 1 + epsilon) A); all [T, B].

    The objective of PPO (Schulman et al., 2017, arXiv 1707.06347, equation 7); r A if epsilon is 0.
    """
    plain = ratios * advantages
    if epsilon == 0.0:
        return Objective(plain, tf.zeros_like(plain, tf.bool))
    clipped = tf.clip_by_value(ratios, 1.0 - epsilon, 1.0 + epsilon) * advantages
    return Objective(tf.minimum(plain, clipped), clipped < plain)
