"""IMPALA: the V-trace policy gradient (Espeholt et al., 2018, arXiv 1802.01561, section 4.2)."""

from __future__ import annotations

import tensorflow as tf

from impala_tf.config import LossConfig
from impala_tf.learner import vtrace
from impala_tf.learner.algorithms.transitions import Estimates, Objective, Transitions


def estimate(
    steps: Transitions, config: LossConfig, target_log_probs: tf.Tensor | None = None
) -> Estimates:
    """Returns the V-trace targets and the advantages, weighted by the clipped pi / mu.

    Args:
      steps: [T, B].
      config: resolved.
      target_log_probs: float32 [T, B], log pi(a|x) of another policy than that of `steps`.
    """
    log_probs = steps.log_probs if target_log_probs is None else target_log_probs
    returns = vtrace.from_importance_weights(
        log_rhos=tf.stop_gradient(log_probs - steps.behaviour_log_probs),
        discounts=steps.discounts,
        rewards=steps.rewards,
        values=steps.values,
        bootstrap_value=steps.bootstrap_value,
        mask=steps.valid,
        clip_rho_threshold=config.clip_rho_threshold,
        clip_pg_rho_threshold=config.clip_pg_rho_threshold,
        clip_c_threshold=config.clip_c_threshold,
        lambda_=config.vtrace_lambda,
    )
    return Estimates(returns.pg_advantages, returns.vs)


def objective(steps: Transitions, advantages: tf.Tensor) -> Objective:
    """Returns log pi(a|x) times the advantages [T, B], whose gradient is the policy gradient."""
    return Objective(steps.log_probs * advantages, tf.zeros_like(steps.valid))
