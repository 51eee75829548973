"""What changes over a run: the learning rate and the entropy cost."""

from __future__ import annotations

from impala_tf import config as configs
from impala_tf.config import Config

_KL_FACTOR = 1.5  # as in rl_games
_KL_RANGE = 10.0


class Schedules:
    """Learning rate and entropy cost as functions of the frames, or of the KL divergence.

    Args:
      config: resolved.

    Attributes:
      kl_factor: what the schedule "kl" multiplies the learning rate by; part of a checkpoint.
    """

    def __init__(self, config: Config) -> None:
        self.kl_factor = 1.0
        self._config = config
        self._last_frame = config.run.schedule_frames

    def learning_rate(self, environment_frames: int) -> float:
        """Returns the learning rate of the next update."""
        optimizer = self._config.optimizer
        start = optimizer.learning_rate
        if optimizer.learning_rate_schedule == "linear":
            end = optimizer.learning_rate_end
            return configs.linear(start, end, environment_frames, self._last_frame)
        return start * self.kl_factor if optimizer.learning_rate_schedule == "kl" else start

    def entropy_cost(self, environment_frames: int) -> float:
        """Returns the entropy cost of the next update."""
        loss = self._config.loss
        start, end = loss.entropy_cost, loss.entropy_cost_end
        return configs.linear(start, end, environment_frames, self._last_frame)

    def observe_kl(self, kl: float) -> None:
        """Adapts the learning rate to the KL divergence of all learners, if that is asked for."""
        optimizer = self._config.optimizer
        if optimizer.learning_rate_schedule != "kl":
            return
        if kl > 2.0 * optimizer.kl_target:
            self.kl_factor = max(self.kl_factor / _KL_FACTOR, 1.0 / _KL_RANGE)
        elif kl < 0.5 * optimizer.kl_target:
            self.kl_factor = min(self.kl_factor * _KL_FACTOR, _KL_RANGE)
