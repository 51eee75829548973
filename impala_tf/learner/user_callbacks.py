"""The user's callbacks (see `impala_tf.callbacks`), which the first learner calls."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from impala_tf.callbacks import Callback
from impala_tf.config import ConfigError, RunConfig, plug_ins
from impala_tf.logdir import Logdir
from impala_tf.monitoring.metrics import Row
from impala_tf.monitoring.rows import GAMES
from impala_tf.monitoring.writers import CsvWriter

_log = logging.getLogger("impala_tf.learner")

COLUMNS = {"environment_frames": "when", "name": "of the metric", "value": ""}
"""The columns of callback_metrics.csv, which has a line for each metric that a callback returns."""


class UserCallbacks:
    """Calls the user's callbacks, and writes the metrics that they return.

    It is a writer of rows (see `monitoring.writers`).

    Args:
      callbacks: the user's.
      logdir: the run's logdir, where the callbacks' metrics are written.
      add_scalars: takes ({name: value}, environment frames) and adds them to TensorBoard.

    Attributes:
      failure: which callback raised what; '' if none did.
    """

    def __init__(
        self,
        callbacks: Sequence[Callback],
        logdir: Logdir,
        add_scalars: Callable[[Mapping[str, float], int], None],
    ) -> None:
        self._callbacks = callbacks
        self._file = CsvWriter(logdir.callback_metrics, COLUMNS)
        self._add_scalars = add_scalars
        self._last_row: Row | None = None
        self.failure = ""

    @property
    def end_reason(self) -> str:
        """Why the run should end; '' if it should not."""
        if self.failure:
            return self.failure
        names = [type(each).__qualname__ for each in self._callbacks if each.stopping]
        return f"--callbacks: {names[0]} has called stop()" if names else ""

    def on_update(self, statistics: Any) -> None:
        """Calls `on_update`; `statistics` is a NamedTuple of numbers, or None (no call)."""
        if self._callbacks and statistics is not None:
            values = {name: float(value) for name, value in statistics._asdict().items()}
            for callback in self._callbacks:
                self._call(callback, "on_update", values)

    def on_checkpoint(self, path: Path) -> None:
        """Calls `on_checkpoint`."""
        for callback in self._callbacks:
            self._call(callback, "on_checkpoint", path)

    def on_end(self) -> None:
        """Calls `on_end`."""
        for callback in self._callbacks:
            self._call(callback, "on_end", self._last_row)

    def write(self, row: Row) -> None:
        """Calls `on_row`, and writes the metrics that callbacks return."""
        row = self._last_row = {**row, "episode_return_games": min(row.get("episodes") or 0, GAMES)}
        frames = int(row["environment_frames"] or 0)
        for callback in self._callbacks:
            metrics = self._call(callback, "on_row", row)
            for name, value in metrics.items():
                line: dict[str, Any] = {"name": name, "value": value}
                self._file.write({"environment_frames": frames, **line})
            if metrics:
                self._add_scalars(metrics, frames)

    def rewind(self, environment_frames: int | None) -> None:
        """See `monitoring.writers`. Without callbacks, the rows of earlier ones stay."""
        if self._callbacks:
            self._file.rewind(environment_frames)

    def close(self) -> None:
        """See `monitoring.writers`."""
        self._file.close()

    def _call(self, callback: Callback, method: str, argument: Any) -> dict[str, float]:
        """Calls a method; returns the metrics that `on_row` returns; {} if none.

        If it raises, or these are no metrics, the traceback is logged and the run ends.
        """
        try:
            returned = getattr(callback, method)(argument)
            if method == "on_row" and returned:
                return {str(name): float(value) for name, value in returned.items()}
        except (Exception, SystemExit) as error:
            _log.exception("a callback raised")
            self.failure = (
                f"--callbacks: {type(callback).__qualname__}.{method} raised"
                f" {plug_ins.raised(error)}; the traceback is in the learner's log"
            )
        return {}


def load(run: RunConfig) -> list[Callback]:
    """Returns the user's callbacks; a name is that of a class, or of an instance.

    Raises:
      ConfigError: a callback cannot be made.
    """
    made = []
    for name in plug_ins.split(run.callbacks):
        named = plug_ins.load("callbacks", name)
        try:
            callback = named() if isinstance(named, type) else named
        except (Exception, SystemExit) as error:
            raise ConfigError(f"--callbacks={name}: raised {plug_ins.raised(error)}") from error
        if not isinstance(callback, Callback):
            what = "must be a subclass of impala_tf.callbacks.Callback, or an instance of one"
            raise ConfigError(f"--callbacks={name}: {what}")
        made.append(callback)
    return made
