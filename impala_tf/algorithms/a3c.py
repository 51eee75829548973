"""A3C: actors compute the gradients, and the learner only applies them.

Mnih et al., 2016, arXiv 1602.01783, algorithm S3. The loss is impala's. An actor computes the
gradient with the parameters that chose its unroll, so every pi / mu is 1, and V-trace with lambda 1
is the n-step return (arXiv 1802.01561, section 4.1).
"""

from __future__ import annotations

from typing import Any

from impala_tf.algorithms import impala
from impala_tf.config import Config, to_dict
from impala_tf.config.algorithms import Algorithm, learns_a_policy
from impala_tf.learner.batch_uses import BatchUses
from impala_tf.types import EnvironmentSpec


def _step(*arguments: Any) -> Any:
    from impala_tf.learner.actor_gradients import ActorGradientStep  # imports TensorFlow

    return ActorGradientStep(*arguments)


def _problems(config: Config, spec: EnvironmentSpec) -> list[str]:
    flags = to_dict(config)
    possible: dict[str, list[Any]] = {
        "synchronization": ["none"],
        "inference": ["actor"],
        "observation_normalization": ["none"],
        "value_normalization": ["none"],
        "advantage_scaling": ["none", "batch"],
        "updates_per_batch": [1],
        "learning_rate_schedule": ["linear", "constant"],
        "entropy_cost_end": [flags["entropy_cost"]],
        "batch_size": [flags["envs_per_actor"]],
    }
    return learns_a_policy(config, spec) + [
        f"--{name}={flags[name]}: a3c's actors compute gradients alone, each of one actor's"
        f" unrolls and once; leave it out, or give {' or '.join(map(str, values))}"
        for name, values in possible.items()
        if flags[name] not in values
    ]


ALGORITHM = Algorithm(
    about="actors compute gradients and send these (arXiv 1602.01783)",
    uses=lambda step, spec, config: BatchUses(),  # an actor's gradient is used once
    step=_step,
    estimate=impala.estimate,
    objective=impala.objective,
    # Actors compute gradients on their own: without statistics that only the learner has, and once
    # per unroll. With few environments each, they send many gradients.
    defaults={
        "observation_normalization": "none",
        "advantage_scaling": "none",
        "value_normalization": "none",
        "updates_per_batch": 1,
        "batch_size": None,
        "envs_per_actor": 4,
    },
    image_defaults={"reward_clipping": "abs_one", "learning_rate": 1e-3},
    # Measured, see sandbox/vectors.md.
    vector_defaults={
        "initialization": "orthogonal",
        "trace_lambda": 1.0,
        "advantage_scaling": "batch",
        "baseline_cost": 0.005,
        "optimizer": "rmsprop",
        "learning_rate": 3e-3,
        "learning_rate_end": 0.0,
        "gradients_clipping": 40.0,
        "loss_reduction": "mean",
        "epsilon": 1e-5,
        "envs_per_actor": 8,
    },
    problems=_problems,
    actors_send="gradients",
    acting="tensorflow",
)
