"""What a callback of yours looks like: --callbacks=my_module:MyCallback."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Callback:
    """Is told what the first learner does. Subclasses override what they need.

    It is made without arguments, in the learner's process. Calls take the learner's time, so keep
    `on_update` short. If one raises, the run writes a checkpoint and ends with status 2.
    """

    stopping = False

    def stop(self) -> None:
        """Ends the run after this update, with a checkpoint, as if it had had all its frames."""
        self.stopping = True

    def on_update(self, statistics: Mapping[str, float]) -> None:
        """Called after every learner update.

        Args:
          statistics: of the update, such as loss_total and gradient_norm.
        """

    def on_row(self, row: Mapping[str, Any]) -> Mapping[str, float] | None:
        """Called with each row of metrics.csv; a metric that is not known is None or left out.

        Returns:
          metrics to add, or None. They go to callback_metrics.csv and to TensorBoard.
        """

    def on_checkpoint(self, path: Path) -> None:
        """Called after a checkpoint was written; `path` is its folder."""

    def on_end(self, row: Mapping[str, Any] | None) -> None:
        """Called once when the run ends or is stopped, with the last row, if there is one."""
