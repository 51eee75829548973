"""A run's built-in callbacks and the user's. The first learner calls them."""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from impala_tf.callbacks import Callback
from impala_tf.config import ConfigError, RunConfig, plug_ins
from impala_tf.logdir import Logdir, read_json, write_atomically
from impala_tf.monitoring.metrics import Row
from impala_tf.monitoring.notes import FOR_USER
from impala_tf.monitoring.rows import GAMES, Score
from impala_tf.monitoring.writers import CsvWriter

_log = logging.getLogger("impala_tf.learner")

ScoreOf = Callable[[Mapping[str, Any]], Score | None]
"""Maps a row of metrics.csv to the score that a run maximises; None: no game has ended yet."""
FEWEST_GAMES = 10
"""With fewer games, a mean says too little to keep a checkpoint as the best one."""

COLUMNS = {"environment_frames": "when", "name": "of the metric", "value": ""}
"""The columns of callback_metrics.csv, which has a line for each metric that a callback returns."""


def mean_return(row: Mapping[str, Any]) -> Score | None:
    """Returns the mean return of the last 100 games, the score of a run with one level."""
    mean: float | None = row.get("episode_return_mean")
    return None if mean is None else Score(mean, row["episodes"])


class StopAtReturn(Callback):
    """--stop_at_return.

    Args:
      wanted: the flag's value.
      score_of: the score to compare with it.
      name: the score's name, in words.

    Attributes:
      reason: why the run stops, with the score; '' before.
    """

    def __init__(
        self, wanted: float, score_of: ScoreOf = mean_return, name: str = "mean return"
    ) -> None:
        self._wanted, self._score_of, self._name = wanted, score_of, name
        self.reason = ""

    def on_row(self, row: Mapping[str, Any]) -> None:
        """Stops the run if the score is high enough, over enough games."""
        if self.stopping:  # one more row is written after the stop
            return
        score = self._score_of(row)
        if score is not None and score.games >= GAMES and score.mean >= self._wanted:
            flag = f"--stop_at_return={self._wanted:.12g}"
            mean = f"{score.mean:.4g}" if abs(score.mean) < 1e4 else f"{score.mean:.0f}"
            self.reason = f"{flag} is reached: the {self._name} is {mean}"
            _log.info("%s", self.reason)
            self.stop()


class SmallReturns(Callback):
    """Says once if all returns are below the unit of --value_normalization=running.

    Args:
      largest: returns the largest absolute return of the last 100 games.
      unit: the smallest unit of values.
    """

    def __init__(self, largest: Callable[[], float], unit: float) -> None:
        self._largest, self._unit = largest, unit
        self._told = False

    def on_row(self, row: Mapping[str, Any]) -> None:
        """Looks at the last 100 games. Where rewards are rare, all returns may be 0."""
        largest = self._largest()
        if self._told or row["episodes"] < GAMES or not 0.0 < largest < self._unit:
            return
        self._told = True
        _log.warning(
            "the returns stay below %.2g, and --value_normalization=running has no unit below %g:"
            " little is learned from them; scale the rewards with a wrapper (--level_wrappers)",
            largest, self._unit, extra=FOR_USER,
        )  # fmt: skip


class KeepBest(Callback):
    """Keeps a copy of the checkpoint with the best score, in LOGDIR/best.

    Scores over fewer than 100 games count only until there is one over 100: on levels with long
    games, a run may end before that.

    Args:
      logdir: the run's logdir.
      score_of: the score to compare.
      name: the score's name in best.json.
    """

    def __init__(
        self, logdir: Logdir, score_of: ScoreOf = mean_return, name: str = "episode_return_mean"
    ) -> None:
        self._folder, self._note = logdir.best, logdir.best / "best.json"
        self._score_of, self._name = score_of, name
        self._last: Score | None = None
        try:
            note = read_json(self._note)
            self._best = Score(float(note[name]), int(note["games"]))
        except (OSError, ArithmeticError, LookupError, TypeError, ValueError):  # none, or damaged
            self._best = Score(float("-inf"), 0)

    def on_row(self, row: Mapping[str, Any]) -> None:
        """Remembers the score: a row precedes each checkpoint."""
        self._last = self._score_of(row)

    def on_checkpoint(self, path: Path) -> None:
        """Copies the checkpoint if its score is the best so far.

        Raises:
          OSError: it cannot be copied.
        """
        score = self._last
        if score is None or score.games < FEWEST_GAMES or _rank(score) <= _rank(self._best):
            return
        self._folder.mkdir(exist_ok=True)
        others = [entry for entry in self._folder.iterdir() if entry.is_dir()]
        target, partial = self._folder / path.name, self._folder / f".{path.name}"
        try:
            partial.mkdir()
            for file in path.iterdir():  # not shutil.copytree, whose errors are lists
                shutil.copy2(file, partial)
            # It exists if the run has resumed from an older checkpoint.
            shutil.rmtree(target, ignore_errors=True)
            partial.rename(target)
        finally:  # a partial copy would keep a full disk full
            shutil.rmtree(partial, ignore_errors=True)
        note = {self._name: score.mean, "games": min(score.games, GAMES)}
        write_atomically(self._note, json.dumps(note))
        self._best = score
        for other in others:
            if other.name != path.name:
                shutil.rmtree(other, ignore_errors=True)


def _rank(score: Score) -> tuple[bool, float]:
    """Returns a key that is greater for a better score."""
    return score.games >= GAMES, score.mean


class Callbacks:
    """Calls all callbacks, and ends the run if one asks for that or raises.

    It is a writer of metrics (see `monitoring.writers`), so it gets every row.

    Args:
      own: the user's callbacks.
      others: the run's built-in callbacks.
      logdir: the run's logdir, where the callbacks' metrics are written.
      add_scalars: takes ({name: value}, environment frames) and adds them to TensorBoard.
    """

    def __init__(
        self,
        own: Sequence[Callback],
        others: Sequence[Callback],
        logdir: Logdir,
        add_scalars: Callable[[Mapping[str, float], int], None] = lambda metrics, frames: None,
    ) -> None:
        self._callbacks = (*own, *others)
        self._own = own
        self._file = CsvWriter(logdir.callback_metrics, COLUMNS)
        self._add_scalars = add_scalars
        self._last_row: Row | None = None
        self.failure = ""
        """Which callback raised what; '' if none did."""

    @property
    def stopping(self) -> bool:
        """Whether the run should end."""
        return bool(self.failure) or any(callback.stopping for callback in self._callbacks)

    @property
    def end_reason(self) -> str:
        """Which callback has asked to end the run, in words; '' if none has."""
        for callback in self._callbacks:
            if callback.stopping:
                own = f"--callbacks: {type(callback).__qualname__} has called stop()"
                return callback.reason if isinstance(callback, StopAtReturn) else own
        return ""

    def on_update(self, statistics: Any) -> None:
        """Calls `on_update`; `statistics` is a NamedTuple of numbers, or None (no call)."""
        if statistics is None:
            return
        values: dict[str, float] | None = None
        for callback in self._callbacks:
            if type(callback).on_update is not Callback.on_update:
                values = values or {k: float(v) for k, v in statistics._asdict().items()}
                self._call(callback, "on_update", values)

    def on_checkpoint(self, path: str | None) -> None:
        """Calls `on_checkpoint`.

        Raises:
          OSError: the checkpoint cannot be copied as the best one.
        """
        with contextlib.ExitStack() as calls:  # if one raises, the others are still called
            for callback in reversed(self._callbacks if path else ()):
                calls.callback(self._call, callback, "on_checkpoint", Path(str(path)))

    def on_end(self) -> None:
        """Calls `on_end`."""
        for callback in self._callbacks:
            self._call(callback, "on_end", self._last_row)

    def write(self, row: Row) -> None:
        """Calls `on_row`, and writes the metrics that callbacks return."""
        row = self._last_row = {**row, "episode_return_games": min(row.get("episodes") or 0, GAMES)}
        frames = int(row["environment_frames"] or 0)
        for callback in self._callbacks:
            returned = self._call(callback, "on_row", row)
            try:
                metrics = {str(name): float(value) for name, value in (returned or {}).items()}
            except (AttributeError, TypeError, ValueError):
                self.failure = (
                    f"--callbacks: {type(callback).__qualname__}.on_row must return {{name:"
                    f" number}} or None, but returned {returned!r}"
                )
                continue
            for name, value in metrics.items():
                line: dict[str, Any] = {"environment_frames": frames, "name": name}
                self._file.write({**line, "value": value})
            if metrics:
                self._add_scalars(metrics, frames)

    def rewind(self, environment_frames: int | None) -> None:
        """See `monitoring.writers`. Without callbacks, the rows of earlier ones stay."""
        if self._own:
            self._file.rewind(environment_frames)

    def close(self) -> None:
        """See `monitoring.writers`."""
        self._file.close()

    def _call(self, callback: Callback, method: str, argument: Any) -> Any:
        """Calls a method. If it raises, the traceback is logged and the run ends."""
        try:
            return getattr(callback, method)(argument)
        except (Exception, SystemExit) as error:
            if isinstance(error, OSError) and type(callback) is KeepBest:
                raise  # a full disk does not end the run
            _log.exception("a callback raised")
            # Built-in callbacks have no flag that the user could look for.
            whose = "--callbacks: " if callback in self._own else "the run's own "
            self.failure = (
                f"{whose}{type(callback).__qualname__}.{method} raised {plug_ins.raised(error)};"
                " the traceback is in the learner's log"
            )


def load(run: RunConfig) -> list[Callback]:
    """Returns the user's callbacks.

    Raises:
      ConfigError: a callback cannot be made.
    """
    made = []
    for name in plug_ins.split(run.callbacks):
        cls = plug_ins.load("callbacks", name)
        if not (isinstance(cls, type) and issubclass(cls, Callback)):
            what = "must be a subclass of impala_tf.callbacks.Callback"
            raise ConfigError(f"--callbacks={name}: {what}")
        try:
            made.append(cls())
        except (Exception, SystemExit) as error:
            raise ConfigError(f"--callbacks={name}: raised {plug_ins.raised(error)}") from error
    return made
