"""PPO (Schulman et al., 2017, arXiv 1707.06347), with GAE (arXiv 1506.02438)."""

from __future__ import annotations

from impala_tf.algorithms import appo
from impala_tf.config import LossConfig
from impala_tf.config.algorithms import Algorithm
from impala_tf.lazy import tf
from impala_tf.learner import vtrace
from impala_tf.learner.batch_uses import Epochs
from impala_tf.learner.losses import Estimates, Objective, Transitions


def estimate(steps: Transitions, config: LossConfig) -> Estimates:
    """Returns `lambda_estimates` with --trace_lambda."""
    return lambda_estimates(steps, config.trace_lambda)


def lambda_estimates(steps: Transitions, lambda_: float) -> Estimates:
    """Returns the generalised advantage estimates A (equations 11 and 12) and A + V; [T, B].

    Where no transition happened (an environment reset), A is 0, and no later reward reaches earlier
    steps across it.
    """
    values = tf.stop_gradient(steps.values)
    bootstrap = tf.stop_gradient(steps.bootstrap_value)
    valid = tf.cast(steps.valid, tf.float32)
    values_t_plus_1 = tf.concat([values[1:], bootstrap[None]], axis=0)
    deltas = valid * (steps.rewards + steps.discounts * values_t_plus_1 - values)
    advantages = vtrace.discounted_sums(deltas, valid * steps.discounts * lambda_)
    return Estimates(advantages, advantages + values)


def objective(steps: Transitions, advantages: tf.Tensor, config: LossConfig) -> Objective:
    """Returns the clipped surrogate (equation 7) of the ratio to the behaviour policy; [T, B]."""
    return appo.clipped_surrogate(appo.ratio(steps), advantages, config.surrogate_clipping)


ALGORITHM = Algorithm(
    about="clipped surrogate with GAE; actors wait for new parameters (arXiv 1707.06347)",
    uses=lambda step, spec, config: Epochs(
        step.prepare,
        config.optimizer.updates_per_batch,
        config.optimizer.minibatches,
        config.run.seed,
    ),
    estimate=estimate,
    objective=objective,
    estimates_once=True,
    # Huang et al. (2022), "The 37 implementation details of proximal policy optimization".
    defaults={
        "advantage_scaling": "batch",
        "initialization": "orthogonal",
        "loss_reduction": "mean",
        "trace_lambda": 0.95,
        "unroll_length": 128,
        "updates_per_batch": 4,
        "minibatches": 4,
        "optimizer": "adam",
        "epsilon": 1e-5,
        "gradients_clipping": 0.5,
        "batch_size": None,
    },
    # Measured, see sandbox/vectors.md.
    continuous_defaults={
        "agent_name": "SeparateMLPAgent",
        "total_environment_frames": 2_000_000,
        "envs_per_actor": 8,
        "updates_per_batch": 10,
        "minibatches": 8,
        "learning_rate": 3e-4,
        "learning_rate_end": 0.0,
    },
    actors_wait=True,
    splits_batches=False,
)
