"""Training from Python: `train` and the `Run` that it returns."""

from __future__ import annotations

import atexit
import csv
import io
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import numpy as np

from impala_tf import config as configs
from impala_tf.api import objects
from impala_tf.callbacks import Callback
from impala_tf.config import Algorithm, ConfigError, flags_of, python_values
from impala_tf.config.flags import COMMAND
from impala_tf.logdir import Logdir
from impala_tf.monitoring import status_file
from impala_tf.processes.local_run import LocalTraining, display_of

if TYPE_CHECKING:
    from impala_tf.api.arguments import TrainArguments

AnyCallback = Callback | type[Callback]
_FINAL = ("stopped", "done", "failed")
_FLAGS = {"level": "level_name", "agent": "agent_name"}  # those of other names


class RunFailed(RuntimeError):  # noqa: N818  # reads well in users' code
    """The processes of a run failed; the message ends with their last lines."""


class Progress(NamedTuple):
    """The progress of a run."""

    state: str
    """starting, training, stopping, stopped, done or failed."""
    frames: int
    """Environment frames so far."""
    total: int
    """Environment frames to train for."""
    agent_steps_per_s: float | None
    """The sum over all learners; None before the first row of metrics.csv."""
    mean_return: float | None
    """The mean over the last 100 games; None if none has finished."""


class Run:
    """A run on this machine; made by `train`.

    Attributes:
      logdir: the run's folder.
      level_name: the name of its level on the command line.
    """

    def __init__(self, training: LocalTraining, show: bool) -> None:
        self.logdir: Path = training.logdir.path
        self.level_name: str = training.spec.level_name
        self._training = training
        self._show = show
        self._over = threading.Event()
        self._stop, self._kill = threading.Event(), threading.Event()
        self._failure: BaseException | None = None
        self._end_reason = ""
        self._last: status_file.Status | None = None  # kept while no status can be read
        if training.is_complete:
            if show:
                print(training.complete_lines)
            training.close()
            self._over.set()
            return
        try:
            training.start()
        except BaseException:
            training.close()
            raise
        atexit.register(self._end)
        threading.Thread(target=self._watch, name="impala run", daemon=True).start()

    def __repr__(self) -> str:
        return f"Run({str(self.logdir)!r}, {self.progress.state})"

    @property
    def progress(self) -> Progress:
        """The progress of the run, from its learner's last status."""
        self._last = last = status_file.read_status(Logdir(self.logdir).status()) or self._last
        total = self._training.config.run.total_environment_frames
        if last is None:
            return Progress(self._state("starting"), self._training.frames, total, None, None)
        row = last["row"] or {}
        return Progress(
            self._state(last["state"]),
            last["environment_frames"],
            last["total_environment_frames"],
            row.get("agent_steps_per_s"),
            row.get("episode_return_mean"),
        )

    def _state(self, told: str) -> str:
        """Returns the run's state from the last status, as a killed learner writes no final one."""
        if not self._over.is_set():
            return told
        if self._failure is not None:
            return "failed"
        return told if told in _FINAL else "stopped"

    @property
    def end_reason(self) -> str:
        """What ended the run before its last frame: an argument or a callback; '' if nothing."""
        return python_values.of_arguments(self._end_reason)

    def metrics(self) -> Any:
        """Returns the rows of metrics.csv so far; impala_tf/monitoring/metrics.py explains them.

        Returns:
          A pandas.DataFrame if pandas is installed; else a NumPy record array, float64, with a
          field for each column, also for those of your callbacks. NaN means no value.
        """
        logdir = Logdir(self.logdir)
        table, of_callbacks = _columns(logdir.metrics), _columns(logdir.callback_metrics)
        frames = table.get("environment_frames", ())
        lines = list(zip(*of_callbacks.values(), strict=True))
        values = {(at, name): value for at, name, value in lines}
        for name in dict.fromkeys(name for _, name, _ in lines):
            column = np.array([values.get((at, name), np.nan) for at in frames])
            table.setdefault(str(name), column)
        return _table(table)

    def evaluations(self) -> Any:
        """Returns evaluation.csv so far, as `metrics` does; None without `eval_every`."""
        path = Logdir(self.logdir).evaluations
        return _table(_columns(path)) if path.exists() else None

    def stop(self) -> None:
        """Stops the run, which writes a checkpoint, and waits until it has ended.

        Training again with the same flags resumes the run.

        Raises:
          RunFailed: the run has failed.
        """
        self._stop.set()
        self.wait()

    @python_values.errors_name_arguments()
    def wait(self, timeout: float | None = None) -> bool:
        """Waits until the run has ended, for at most `timeout` seconds; returns whether it has.

        Raises:
          RunFailed: the run has failed.
          ConfigError: one of its processes found its flags or files unusable, or a callback raised.
        """
        if not self._over.wait(timeout):
            return False
        if self._failure is not None:
            raise self._failure
        return True

    @property
    def over(self) -> bool:
        """Whether the run has ended."""
        return self._over.is_set()

    def _end(self) -> None:
        """Stops the run before the interpreter, and so its threads, exit."""
        self._stop.set()
        self._over.wait()

    def interrupt(self) -> None:
        """Stops the run; a second interrupt kills it."""
        self._stop.set()
        try:
            self._over.wait()
        except KeyboardInterrupt:
            self._kill.set()
            self._over.wait()
            raise

    def _watch(self) -> None:
        """Runs in a thread of its own until the run is over."""
        training = self._training
        try:
            display = display_of(training) if self._show else None
            failure = training.follow(self._stop.is_set, self._kill.is_set, display)
            if failure:
                raise RunFailed(failure)
        except BaseException as failure:  # `wait` raises it
            self._failure = failure
        finally:
            training.close()
            self._end_reason = training.end_reason
            atexit.unregister(self._end)
            self._over.set()


@python_values.errors_name_arguments()
def train(
    level: str | Callable[..., Any],
    *,
    agent: str | Callable[[], Any] | None = None,
    algorithm: str | Algorithm | None = None,
    callbacks: str | AnyCallback | Sequence[str | AnyCallback] = (),
    wait: bool = True,
    show: bool | None = None,
    **flags: Unpack[TrainArguments],
) -> Run:
    """Trains an agent on this machine, in processes of their own.

    With the logdir of a stopped run, resumes it, as on the command line. Interrupting this call
    (Ctrl-C, a notebook's stop button) stops the run, which writes a checkpoint, and raises
    KeyboardInterrupt; interrupting it twice kills the run.

    Classes, functions and records that are at the top level of a module are imported from there by
    the run's processes. What is defined in a script or a notebook, and every instance, is written
    to a module in the logdir with cloudpickle.

    Args:
      level: a level's name; or a function or class that makes a Gymnasium environment.
      agent: a network's name; or a class or function that makes a torso, a Sonnet module.
      algorithm: an algorithm's name; or a record, as `ALGORITHM` in examples/own_algorithm.py.
      callbacks: classes or instances of `Callback`. The learner's process calls a copy of an
        instance: what it returns and prints arrives in `Run.metrics` and in the learner's log, but
        its attributes here do not change.
      wait: whether to wait until the run has ended. If not, it stops when this process ends.
      show: whether to print the progress. Default: `wait`.
      flags: flags of the command line, such as `total_environment_frames=1_000_000`.

    Raises:
      ConfigError: flags, an object or a logdir that cannot be used; nothing was started.
      RunFailed: the run failed (only if `wait`).
    """
    if objects.CHILD_VARIABLE in os.environ:
        raise ConfigError(
            "train: the processes of a run import the file that calls train, which a flag names;"
            " put the call under: if __name__ == '__main__':"
        )
    named: dict[str, Any] = {"level": level, "agent": agent, "algorithm": algorithm}
    named |= {"callbacks": callbacks, "level_wrappers": flags.pop("level_wrappers", ())}
    show = wait if show is None else show
    run = Run(_training(named, dict(flags)), show)
    if wait and not run.over:
        try:
            run.wait()
        except KeyboardInterrupt:
            run.interrupt()
            try:
                run.wait()
                print(f"stopped; the same call resumes the run in {run.logdir}")
            except Exception as failure:  # the caller gets the interrupt, not this
                print(failure)
            raise
    return run


def _training(named: dict[str, Any], flags: dict[str, Any]) -> LocalTraining:
    """Returns a run that has claimed its folder, ready to start.

    Args:
      named: {argument: object, text, or a sequence of these}.
      flags: the other arguments.
    """
    level, agent = named["level"], named["agent"]
    if not (isinstance(level, str) or callable(level)):
        raise ConfigError(
            f"level={level!r}: must be a level's name, or a function or class that makes an"
            " environment"
        )
    is_made = not isinstance(agent, type) and hasattr(agent, "trainable_variables")
    if agent is not None and (is_made or not (isinstance(agent, str) or callable(agent))):
        raise ConfigError(
            f"agent={agent!r}: must be a network's name, or a class or function that makes a torso"
        )
    if refused := [name for name in ("level_name", *flags_of(COMMAND)) if name in flags]:
        raise ConfigError([f"--{name}: train does not take it" for name in refused])
    own = objects.Objects()
    for argument, value in named.items():
        several = value if isinstance(value, list | tuple) else (value,)
        if several and value is not None:
            names = [own.name(argument, each) for each in several]
            flags[_FLAGS.get(argument, argument)] = ",".join(names)
    training = LocalTraining(python_values.given(flags))
    training.claim()
    folder = training.logdir.path
    try:
        own.write(folder)
        training.environment = objects.environment(folder)
    except BaseException:
        training.close()
        raise
    objects.note_trained(folder, configs.to_dict(training.config))
    return training


def _table(columns: dict[str, np.ndarray]) -> Any:
    """Returns columns as `Run.metrics` does."""
    try:
        import pandas
    except ImportError:
        types = [(name, column.dtype) for name, column in columns.items()]
        return np.rec.fromarrays(list(columns.values()), types) if types else np.recarray(0, [])
    return pandas.DataFrame(columns)


def _columns(path: Path) -> dict[str, np.ndarray]:
    """Returns the columns of a CSV file, which may be missing; those of text are objects."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    text = text[: text.rfind("\n") + 1]  # the last line may be incomplete
    names, *rows = list(csv.reader(io.StringIO(text, newline=""))) or [[]]
    return {name: _column([row[at] for row in rows]) for at, name in enumerate(names)}


def _column(cells: Sequence[str]) -> np.ndarray:
    try:
        return np.array([float(cell or "nan") for cell in cells])
    except ValueError:
        return np.array(cells, object)
