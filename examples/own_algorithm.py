"""An algorithm of one's own: advantage-weighted regression (Peng et al., 2019, arXiv 1910.00177).

    cd examples    # Python finds the module in the current folder
    impala train --level_name=CartPole-v1 --algorithm=own_algorithm:ALGORITHM

In Python: impala_tf.train("CartPole-v1", algorithm=ALGORITHM).
It imitates its own actions, weighted by exp(advantage / temperature). Targets are IMPALA's V-trace.
"""

from __future__ import annotations

from impala_tf.algorithms.impala import estimate
from impala_tf.config import LossConfig
from impala_tf.config.algorithms import Algorithm
from impala_tf.lazy import tf  # TensorFlow, imported when it is used: launchers read this file, too
from impala_tf.learner.batch_uses import Ring
from impala_tf.learner.losses import Objective, Transitions

TEMPERATURE, LARGEST_WEIGHT = 1.0, 20.0


def objective(steps: Transitions, advantages: tf.Tensor, config: LossConfig) -> Objective:
    """Returns log pi(a|x) [T, B], weighted by the advantage of each action."""
    weights = tf.minimum(tf.exp(advantages / TEMPERATURE), LARGEST_WEIGHT)
    return Objective(steps.log_probs * tf.stop_gradient(weights), tf.zeros_like(steps.valid))


ALGORITHM = Algorithm(
    about="advantage-weighted regression (arXiv 1910.00177)",
    uses=lambda step, spec, config: Ring(config.optimizer.updates_per_batch, 1),
    estimate=estimate,
    objective=objective,
    defaults={"entropy_cost": 0.0, "entropy_cost_end": 0.0},
)
