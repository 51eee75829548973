"""Double DQN with n-step returns and prioritised replay (arXiv 1509.06461, 1803.00933).

`step` has the gradient step and its formulas, `replay` how often steps are drawn, and `buffer` the
replay buffer.
"""

from __future__ import annotations

from typing import Any

from impala_tf.config import Config
from impala_tf.config.algorithms import Algorithm, learns_q_values
from impala_tf.types import EnvironmentSpec


def _step(*arguments: Any) -> Any:
    from impala_tf.algorithms.dqn.step import QStep  # imports TensorFlow

    return QStep(*arguments)


def _uses(step: Any, spec: EnvironmentSpec, config: Config) -> Any:
    from impala_tf.algorithms.dqn.replay import replayed  # imports TensorFlow

    return replayed(step, spec, config)


def _problems(config: Config, spec: EnvironmentSpec) -> list[str]:
    process, agent = config.process, config.agent
    problems = learns_q_values(config, spec)
    if process.synchronization != "none":
        problems.append(
            f"--synchronization={process.synchronization}: dqn learns from old steps anyway;"
            " leave it out"
        )
    if agent.core != "feedforward":
        problems.append(
            f"--algorithm=dqn: replays single steps, which the {agent.core} of {agent.agent_name}"
            " cannot learn from; add --core=feedforward"
        )
    if not config.loss.target_update_interval:
        problems.append("--target_update_interval=0: dqn needs a target network; give 1 or more")
    capacity, start = config.replay.replay_capacity, config.replay.replay_start_steps
    batch = config.optimizer.batch_size * config.optimizer.unroll_length
    if capacity < batch:
        problems.append(
            f"--replay_capacity={capacity}: a batch of {config.optimizer.batch_size} unrolls"
            f" already has {batch} agent steps; give more"
        )
    elif capacity < start:
        problems.append(
            f"--replay_start_steps={start}: the replay holds only {capacity} agent steps"
            " (--replay_capacity); give fewer"
        )
    return problems


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
