"""PQN: Q(lambda) from unrolls as they arrive, without a replay buffer or a target network.

Gallici et al., 2024, "Simplifying Deep Temporal Difference Learning", arXiv 2407.04811. LayerNorm
in the network (--layer_norm) keeps it stable. Unlike in the paper, actors keep acting while their
learner learns.
"""

from __future__ import annotations

from typing import Any

from impala_tf.algorithms import ppo
from impala_tf.config import LossConfig
from impala_tf.config.algorithms import Algorithm, learns_q_values
from impala_tf.learner.losses import Estimates, Transitions


def estimate(steps: Transitions, config: LossConfig) -> Estimates:
    """Returns the targets G of Q(x_t, a_t) (section 4), and G - max_a Q(x_t, a); [T, B].

    G_t = r_t + gamma (lambda G_{t+1} + (1 - lambda) max_a Q(x_{t+1}, a)). This is GAE's A + V with
    V(x) = max_a Q(x, a), so these are the values that `steps` must hold.
    """
    return ppo.lambda_estimates(steps, config.trace_lambda)


def _step(*arguments: Any) -> Any:
    from impala_tf.learner.q_step import UnrollQStep  # imports TensorFlow

    return UnrollQStep(*arguments)


ALGORITHM = Algorithm(
    about="Q(lambda) with LayerNorm, without a replay and a target network (arXiv 2407.04811)",
    uses=ppo.ALGORITHM.uses,
    step=_step,
    estimate=estimate,
    estimates_once=True,
    defaults={
        "heads": "q_values",
        "layer_norm": True,
        "loss_reduction": "mean",
        "trace_lambda": 0.65,
        "batch_size": 32,
        "unroll_length": 32,
        "updates_per_batch": 2,
        "minibatches": 8,
        "optimizer": "adam",
        "epsilon": 1e-5,
        "learning_rate": 5e-4,
        "learning_rate_end": 5e-5,
        "gradients_clipping": 10.0,
    },
    image_defaults={
        "reward_clipping": "abs_one",
        "value_normalization": "none",
        "batch_size": 16,
        "minibatches": 4,
    },
    vector_defaults={
        "batch_size": 16,
        "minibatches": 4,
        "observation_normalization": "elementwise",
        "trace_lambda": 0.9,
        "value_normalization": "running",
        "learning_rate": 1e-3,
        "learning_rate_end": 1e-4,
        "gradients_clipping": 0.5,
    },
    problems=learns_q_values,
    acting="tensorflow",
    splits_batches=False,
)
