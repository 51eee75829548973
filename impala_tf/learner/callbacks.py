"""The callbacks of a run: its own, and the user's; called in the first learner."""

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
from impala_tf.logdir import Logdir, write_atomically
from impala_tf.monitoring.metrics import Row
from impala_tf.monitoring.rows import GAMES, Score
from impala_tf.monitoring.writers import CsvWriter, TensorBoardWriter

_log = logging.getLogger("impala_tf.learner")

ScoreOf = Callable[[Mapping[str, Any]], Score | None]
"""Maps a row of metrics.csv to what a run wants to be high; None: there is no game so far."""
FEWEST_GAMES = 10
"""A mean over fewer games says too little to keep a checkpoint for it."""

COLUMNS = {
    "environment_frames": "when",
    "name": "of the metric",
    "value": "",
}
"""Of callback_metrics.csv: a line for each metric that a callback returns."""


def mean_return(row: Mapping[str, Any]) -> Score | None:
    """Returns the mean return of the last 100 games, the score of a run with one level."""
    mean: float | None = row.get("episode_return_mean")
    return None if mean is None else Score(mean, row["episodes"])


class StopAtReturn(Callback):
    """--stop_at_return.

    Args:
      wanted: its value.
      score_of: what is compared.
      name: of the score, in words.

    Attributes:
      reason: that it stops the run, with the score; '' before.
    """

    def __init__(
        self, wanted: float, score_of: ScoreOf = mean_return, name: str = "mean return"
    ) -> None:
        self._wanted, self._score_of, self._name = wanted, score_of, name
        self.reason = ""

    def on_row(self, row: Mapping[str, Any]) -> None:
        """Stops if the score is high enough, and over enough games."""
        if self.stopping:  # a last row follows
            return
        score = self._score_of(row)
        if score is not None and score.games >= GAMES and score.mean >= self._wanted:
            flag = f"--stop_at_return={self._wanted:.12g}"
            self.reason = f"{flag} is reached: the {self._name} is {score.mean:.10g}"
            _log.info("%s", self.reason)
            self.stop()


class KeepBest(Callback):
    """Keeps a copy of the checkpoint with the best score, in LOGDIR/best.

    Scores over fewer than 100 games count only until there is one over 100: games of some levels
    are so long that a run ends before that.

    Args:
      logdir: of the run.
      score_of: what is compared.
      name: what best.json calls the score.
    """

    def __init__(
        self, logdir: Logdir, score_of: ScoreOf = mean_return, name: str = "episode_return_mean"
    ) -> None:
        self._folder, self._note = logdir.best, logdir.best / "best.json"
        self._score_of, self._name = score_of, name
        self._last: Score | None = None
        try:
            note = json.loads(self._note.read_text())
            # Notes from before there were scores over fewer games have no number of them.
            self._best = Score(float(note[name]), int(note.get("games", GAMES)))
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            self._best = Score(float("-inf"), 0)

    def on_row(self, row: Mapping[str, Any]) -> None:
        """Remembers the score; a checkpoint is written after a row."""
        self._last = self._score_of(row)

    def on_checkpoint(self, path: Path) -> None:
        """Copies it if no earlier one had a higher score."""
        score = self._last
        if score is None or score.games < FEWEST_GAMES or _rank(score) <= _rank(self._best):
            return
        self._folder.mkdir(exist_ok=True)
        others = [each for each in self._folder.iterdir() if each.is_dir()]
        target, aside = self._folder / path.name, self._folder / f".{path.name}"
        try:
            shutil.copytree(path, aside)
            shutil.rmtree(target, ignore_errors=True)  # of the run before it resumed from less
            aside.rename(target)
        finally:  # half a copy would keep a full disk full
            shutil.rmtree(aside, ignore_errors=True)
        note = {self._name: score.mean, "games": min(score.games, GAMES)}
        write_atomically(self._note, json.dumps(note))
        self._best = score
        for other in others:
            if other.name != path.name:
                shutil.rmtree(other, ignore_errors=True)


def _rank(score: Score) -> tuple[bool, float]:
    """Returns what is greater for a better score."""
    return score.games >= GAMES, score.mean


class Callbacks:
    """Calls each callback, and ends the run if one asks for that or raises.

    It is a writer of metrics (see `monitoring.writers`), so it is told of every row.

    Args:
      own: the user's.
      others: the run's.
      logdir: where their metrics are written.
      add_scalars: takes ({name: value}, environment frames); adds them to TensorBoard.
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
        self._path = logdir.callback_metrics
        self._file = CsvWriter(self._path, COLUMNS)
        self._add_scalars = add_scalars
        self._last_row: Row | None = None
        self.failure = ""
        """Which callback raised, and what; '' if none did."""

    @property
    def stopping(self) -> bool:
        """Whether the run should end."""
        return bool(self.failure) or any(each.stopping for each in self._callbacks)

    @property
    def end_reason(self) -> str:
        """Which callback has asked to end the run, in words; '' if none has."""
        for each in self._callbacks:
            if each.stopping:
                own = f"--callbacks: {type(each).__qualname__} has called stop()"
                return each.reason if isinstance(each, StopAtReturn) else own
        return ""

    def on_update(self, statistics: Any) -> None:
        """Tells of an update; `statistics` is a NamedTuple of numbers, or None."""
        if statistics is None:
            return
        values: dict[str, float] | None = None
        for each in self._callbacks:
            if type(each).on_update is not Callback.on_update:
                values = values or {k: float(v) for k, v in statistics._asdict().items()}
                self._call(each, "on_update", values)

    def on_checkpoint(self, path: str | None) -> None:
        """Tells of a checkpoint. Raises OSError if it cannot be kept as the best one."""
        with contextlib.ExitStack() as every:  # The others are told in any case.
            for each in reversed(self._callbacks if path else ()):
                every.callback(self._call, each, "on_checkpoint", Path(str(path)))

    def on_end(self) -> None:
        """Tells that the run is over."""
        for each in self._callbacks:
            self._call(each, "on_end", self._last_row)

    def write(self, row: Row) -> None:
        """Tells of a row, and writes the metrics that callbacks return."""
        self._last_row = row
        frames = int(row["environment_frames"] or 0)
        for each in self._callbacks:
            if metrics := self._numbers(each, self._call(each, "on_row", row)):
                for name, value in metrics.items():
                    line: dict[str, Any] = {"environment_frames": frames, "name": name}
                    self._file.write({**line, "value": value})
                self._add_scalars(metrics, frames)

    def position(self) -> dict[str, int]:
        """As every writer."""
        if self._own:
            return self._file.position()
        # Rows from a time when the run had callbacks stay, should it have some again.
        return {"offset": self._path.stat().st_size} if self._path.exists() else {}

    def rewind(self, position: Mapping[str, int] | None) -> None:
        """As every writer."""
        if self._own:
            self._file.rewind(position)

    def close(self) -> None:
        """As every writer."""
        self._file.close()

    def _call(self, callback: Callback, method: str, argument: Any) -> Any:
        """Calls a method; of a callback that raises, the traceback is logged and the run ends."""
        try:
            return getattr(callback, method)(argument)
        except OSError as error:
            if type(callback) is KeepBest:
                raise  # a full disk is no failure of the run
            self._fail(callback, method, error)
        except (Exception, SystemExit) as error:
            self._fail(callback, method, error)

    def _numbers(self, callback: Callback, metrics: Any) -> dict[str, float]:
        """Returns what a callback's `on_row` has returned, checked."""
        try:
            return {str(name): float(value) for name, value in (metrics or {}).items()}
        except (AttributeError, TypeError, ValueError):
            self.failure = (
                f"--callbacks: {type(callback).__qualname__}.on_row must return {{name: number}} or"
                f" None, but returned {metrics!r}"
            )
            return {}

    def _fail(self, callback: Callback, method: str, error: BaseException) -> None:
        _log.exception("a callback raised")
        # Of those that the run has of itself, the user knows no flag.
        whose = "--callbacks: " if callback in self._own else "the run's own "
        self.failure = (
            f"{whose}{type(callback).__qualname__}.{method} raised {plug_ins.raised(error)};"
            " the traceback is in the learner's log"
        )


def of_run(
    run: RunConfig,
    logdir: Logdir,
    tensorboard: TensorBoardWriter,
    more: Sequence[Callback] = (),
    of_levels: ScoreOf | None = None,
) -> Callbacks:
    """Returns the callbacks of a run.

    Args:
      run: its flags.
      logdir: its folder.
      tensorboard: shows the callbacks' metrics.
      more: callbacks of the run's own.
      of_levels: the score if the agent learns several levels.

    Raises:
      ConfigError: as `load`.
    """
    name = "episode_return_mean" if of_levels is None else "mean_over_levels"
    in_words = "mean return" if of_levels is None else "mean over the levels"
    score_of = of_levels or mean_return
    others: list[Callback] = [KeepBest(logdir, score_of, name), *more]
    if run.stop_at_return is not None:
        others.append(StopAtReturn(run.stop_at_return, score_of, in_words))
    return Callbacks(load(run), others, logdir, tensorboard.add)


def load(run: RunConfig) -> list[Callback]:
    """Returns the user's callbacks.

    Raises:
      ConfigError: one cannot be made.
    """
    return [_make(name) for name in plug_ins.split(run.callbacks)]


def _make(name: str) -> Callback:
    made = plug_ins.load("callbacks", name)
    if not (isinstance(made, type) and issubclass(made, Callback)):
        raise ConfigError(f"--callbacks={name}: must be a subclass of impala_tf.callbacks.Callback")
    try:
        return made()
    except (Exception, SystemExit) as error:
        raise ConfigError(f"--callbacks={name}: raised {plug_ins.raised(error)}") from error
