"""APPO: V-trace advantages in a clipped surrogate (Luo et al., 2020, IMPACT, arXiv 1912.00167).

Let A be the V-trace advantage, mu the behaviour policy, pi the learned policy and r = pi / mu. The
surrogate is min(r A, clip(r) A). V-trace has already weighted A by min(rho-bar, r), so here it is
divided by r (without a gradient). Steps that are not clipped have IMPALA's gradient; so without
clipping, this is IMPALA. From IMPACT it takes the ring of batches, but not the target network.
"""

from __future__ import annotations

from impala_tf.algorithms import impala
from impala_tf.config import LossConfig
from impala_tf.config.algorithms import Algorithm
from impala_tf.lazy import tf
from impala_tf.learner.batch_uses import Ring
from impala_tf.learner.losses import Objective, Transitions

_MAX_LOG_RATIO = 20.0  # keeps ratios finite


def objective(steps: Transitions, advantages: tf.Tensor, config: LossConfig) -> Objective:
    """Returns the clipped surrogate of the advantages [T, B] of `impala.estimate`."""
    ratios = ratio(steps)
    return clipped_surrogate(
        ratios, advantages / tf.stop_gradient(ratios), config.surrogate_clipping
    )


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


ALGORITHM = Algorithm(
    about="V-trace advantages in a clipped surrogate, on batches that are used several times"
    " (arXiv 1912.00167)",
    uses=lambda step, spec, config: Ring(
        config.optimizer.updates_per_batch, config.optimizer.ring_batches
    ),
    estimate=impala.estimate,
    objective=objective,
)
