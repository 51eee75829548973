"""The base class of your callbacks: in Python callbacks=[MyCallback()], else --callbacks=mine:My.

What other libraries have as ready-made callbacks are flags here: `stop_at_return`, `eval_every`,
`video_every`, `checkpoint_interval_s`, `max_hours`; in Python, `show=True` prints the progress.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Callback:
    """Follows what the first learner does. Subclasses override the methods that they need.

    A class is made without arguments, in the learner's process; an instance that `train` was given
    is copied there. Calls take the learner's time, so keep `on_update` short. If a method raises,
    the run writes a checkpoint and ends with status 2.
    """

    stopping = False

    def stop(self) -> None:
        """Ends the run after this batch, with a checkpoint, as if training were complete."""
        self.stopping = True

    def on_update(self, statistics: Mapping[str, float]) -> None:
        """Called after every batch, whose gradient steps are all taken then.

        Args:
          statistics: {name: mean over these steps}, such as loss_total, gradient_norm.
        """

    def on_row(self, row: Mapping[str, Any]) -> Mapping[str, float] | None:
        """Called with each row of metrics.csv; an unknown metric is None or missing.

        `episode_return_games` is how many games episode_return_mean is of: 100, at first fewer.

        Returns:
          metrics to add, or None. They go to callback_metrics.csv and to TensorBoard.
        """

    def on_checkpoint(self, path: Path) -> None:
        """Called after each checkpoint; `path` is its folder."""

    def on_end(self, row: Mapping[str, Any] | None) -> None:
        """Called once when the run ends or is stopped, with the last row, if there is one."""
