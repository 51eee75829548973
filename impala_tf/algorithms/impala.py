"""IMPALA: the V-trace policy gradient (Espeholt et al., 2018, arXiv 1802.01561, section 4.2)."""

from __future__ import annotations

from impala_tf.config import LossConfig
from impala_tf.config.algorithms import Algorithm
from impala_tf.lazy import tf
from impala_tf.learner import vtrace
from impala_tf.learner.batch_uses import Ring
from impala_tf.learner.losses import Estimates, Objective, Transitions


def estimate(steps: Transitions, config: LossConfig) -> Estimates:
    """Returns the V-trace targets and the advantages weighted by the clipped pi / mu; [T, B]."""
    vs, pg_advantages, rhos = vtrace.from_importance_weights(
        log_rhos=tf.stop_gradient(steps.log_probs - steps.behaviour_log_probs),
        discounts=steps.discounts,
        rewards=steps.rewards,
        values=steps.values,
        bootstrap_value=steps.bootstrap_value,
        mask=steps.valid,
        lambda_=config.trace_lambda,
    )
    return Estimates(pg_advantages, vs, rhos)


def objective(steps: Transitions, advantages: tf.Tensor, config: LossConfig) -> Objective:
    """Returns log pi(a|x) times the advantages [T, B], whose gradient is the policy gradient."""
    return Objective(steps.log_probs * advantages, tf.zeros_like(steps.valid))


ALGORITHM = Algorithm(
    about="V-trace policy gradient (arXiv 1802.01561)",
    uses=lambda step, spec, config: Ring(config.optimizer.updates_per_batch, 1),
    estimate=estimate,
    objective=objective,
    # Measured, see sandbox/vectors.md. Nothing is clipped, so a batch has two uses, not eight.
    continuous_defaults={
        "agent_name": "SeparateMLPAgent",
        "discounting": 0.993,
        "total_environment_frames": 2_000_000,
        "envs_per_actor": 8,
        "batch_size": 4,
        "unroll_length": 64,
        "learning_rate": 7e-4,
        "learning_rate_end": 0.0,
    },
)
