"""Double DQN with n-step returns and prioritised replay (arXiv 1509.06461, 1803.00933).

`step` has the gradient step and its formulas, `replay` how often steps are drawn, and `buffer` the
replay buffer.
"""

from __future__ import annotations

from typing import Any

from impala_tf.config import Config, to_dict
from impala_tf.config.algorithms import Algorithm, learns_q_values
from impala_tf.types import EnvironmentSpec


def _step(*arguments: Any) -> Any:
    from impala_tf.algorithms.dqn.step import QStep  # imports TensorFlow

    return QStep(*arguments)


def _uses(step: Any, spec: EnvironmentSpec, config: Config) -> Any:
    from impala_tf.algorithms.dqn.replay import replayed  # imports TensorFlow

    return replayed(step, spec, config)


def _problems(config: Config, spec: EnvironmentSpec) -> list[str]:
    flags = to_dict(config)
    capacity, batch = flags["replay_capacity"], flags["batch_size"] * flags["unroll_length"]
    wrong = {
        "synchronization": (
            flags["synchronization"] != "none",
            "dqn learns from old steps anyway; leave it out",
        ),
        "core": (
            config.agent.core != "feedforward",
            "dqn replays single steps; add --core=feedforward",
        ),
        "replay_capacity": (
            capacity < batch,
            f"a batch of --batch_size unrolls already has {batch} agent steps; give more",
        ),
    }
    lines = [
        f"--{name}={flags[name]}: {why}" for name, (is_wrong, why) in wrong.items() if is_wrong
    ]
    return learns_q_values(config, spec) + lines


ALGORITHM = Algorithm(
    about="double DQN with n-step returns and replay (arXiv 1509.06461, 1803.00933)",
    uses=_uses,
    step=_step,
    defaults={
        "heads": "q_values",
        "loss_reduction": "mean",
        "value_normalization": "none",
        "batch_size": 4,
        "unroll_length": 64,
        "optimizer": "adam",
        "learning_rate": 3e-4,
        "learning_rate_schedule": "constant",
        "learning_rate_end": 3e-4,
        "epsilon": 1.5e-4,
        "gradients_clipping": 10.0,
        "target_update_interval": 250,
    },
    image_defaults={"reward_clipping": "abs_one", "replay_start_steps": 5_000},
    vector_defaults={
        "heads": "dueling",
        "observation_normalization": "elementwise",
        "value_normalization": "running",
        "replay_start_steps": 1_000,
        "replay_ratio": 0.125,
        "learning_rate": 2.5e-3,
        "learning_rate_schedule": "linear",
        "learning_rate_end": 0.0,
        "target_update_interval": 100,
    },
    problems=_problems,
    acting="tensorflow",
    replays=True,
    splits_batches=False,
)
