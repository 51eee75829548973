"""A process beside learner 0 that shows what the newest checkpoint is worth, now and then.

It has a low priority: whatever it computes, the learner and the actors come first, and a level that
crashes in it takes nothing with it. Learner 0 starts it, so the same code serves a run on this
machine and a launched one, and TensorBoard's files keep one writer.
"""

from __future__ import annotations

import abc
import contextlib
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from impala_tf import config as configs
from impala_tf.callbacks import Callback
from impala_tf.config import Config, Given, user_commands
from impala_tf.machine.process_lifetime import PARENT_VARIABLE
from impala_tf.monitoring.notes import FOR_USER

_NICER = 10  # a tenth of a core if all are busy: with 19, a video takes ten times as long
_STOP_S = 5.0
_POLL_S = 0.2

_log = logging.getLogger("impala_tf.learner")


class Work(NamedTuple):
    """What a process beside the learner does."""

    name: str
    """What one result is called: "video"."""
    flag: str
    """The flag that asks for it, without --."""
    every: int
    """Environment frames from one to the next."""
    log: Path
    """What the newest process has printed."""
    command: tuple[str, ...]
    """Starts the process; `Beside.arguments` follow."""
    longest_s: float
    """How long it may take: a game may never end."""
    longest_end_s: float
    """How long the end of a run waits for it."""
    last: bool = False
    """Whether the run's last checkpoint is wanted in any case."""


class Beside(Callback, abc.ABC):
    """Starts a process for a checkpoint again and again, and passes on its results.

    There is one process at a time. Its last words are a line of JSON, which `result_line` writes.
    It plays with the checkpoint that is the newest one when it has started. What fails is said
    once, and never ends the run.

    Args:
      work: what the process does.

    Attributes:
      process: that works now, or has ended and was not looked at; None: there is none.
    """

    def __init__(self, work: Work) -> None:
        self.work = work
        self.process: subprocess.Popen[bytes] | None = None
        self._began_at = 0.0
        # Processes end with the thread that starts them, and `learn` has a thread of its own.
        self._starter = ThreadPoolExecutor(1, thread_name_prefix=work.name)
        self._frames = 0  # of the last row
        self._next: int | None = None
        self._saved_frames = 0  # of the newest checkpoint
        self._result_frames = 0  # of the checkpoint of the last result
        self._failed = self._closed = False

    @abc.abstractmethod
    def publish(self, result: Mapping[str, Any], environment_frames: int) -> None:
        """Takes a result, and the environment frames of the last row; OSError: it was not kept.

        It has "environment_frames", those that its checkpoint was trained for.
        """

    def arguments(self) -> list[str]:
        """Returns what follows the command of the next process."""
        return []

    def tidy_up(self) -> None:
        """Removes what a process has left that was killed."""

    @property
    def is_wanted(self) -> bool:
        """Whether a process is at work, or has to play with the newest checkpoint yet."""
        return not self._closed and (self.process is not None or self._is_last_wanted())

    def on_row(self, row: Mapping[str, Any]) -> None:
        """Passes on what has become complete."""
        self._frames = int(row["environment_frames"])
        if self._next is None:
            self._schedule()
        self._collect()
        if self.process is not None and time.monotonic() - self._began_at > self.work.longest_s:
            self._stop()
            self._complain(f"it took longer than {self.work.longest_s / 60:.0f} minutes")

    def on_checkpoint(self, path: Path) -> None:
        """Starts a process if it is time for one and none is at work."""
        self._saved_frames = self._frames  # a row comes with each checkpoint
        if self._next is None or self._frames < self._next or self.process is not None:
            return
        self._schedule()
        self._begin()

    def close(self, may_wait: Callable[[], bool] = lambda: False) -> None:
        """Ends the process, and removes what is not complete.

        Args:
          may_wait: while this says so, work may be completed, and that on the last checkpoint be
            done. It is not asked after `Work.longest_end_s`.
        """
        deadline = time.monotonic() + self.work.longest_end_s

        def goes_on() -> bool:
            return time.monotonic() < deadline and may_wait()

        self._await(goes_on)
        if self._is_last_wanted() and goes_on():
            self._begin()
            self._await(goes_on)
        if self.is_wanted and may_wait():
            minutes = self.work.longest_end_s / 60
            self._complain(f"the last one was not complete {minutes:.0f} minutes after training")
        self._stop()
        self._starter.shutdown()
        self.tidy_up()
        self._closed = True

    def _is_last_wanted(self) -> bool:
        return self.work.last and self._saved_frames > self._result_frames

    def _schedule(self) -> None:
        self._next = (self._frames // self.work.every + 1) * self.work.every

    def _begin(self) -> None:
        try:
            self._starter.submit(self._start).result()
        except OSError as error:  # such as a full disk, which is no failure of the run
            self._complain(str(error))

    def _start(self) -> None:
        self._began_at = time.monotonic()
        self.tidy_up()
        self.work.log.parent.mkdir(exist_ok=True)
        environment = {**os.environ, PARENT_VARIABLE: str(os.getpid())}
        if user_commands.IS_CHECKOUT:
            paths = (str(user_commands.PROJECT), os.environ.get("PYTHONPATH"))
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        with self.work.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*self.work.command, *self.arguments()],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        # Before it has threads, which would keep the old one.
        with contextlib.suppress(ProcessLookupError):
            os.setpriority(os.PRIO_PROCESS, self.process.pid, min(19, os.nice(0) + _NICER))

    def _await(self, goes_on: Callable[[], bool]) -> None:
        while self.process is not None and self.process.poll() is None and goes_on():
            time.sleep(_POLL_S)
        self._collect()

    def _collect(self) -> None:
        """Passes on the result of a process that has ended; says once if it has none."""
        if self.process is None or self.process.poll() is None:
            return
        status, self.process = self.process.returncode, None
        try:
            lines = self.work.log.read_text(errors="replace").strip().splitlines()
            results = _results(self.work.name, lines) if status == 0 else []
            if not results:
                self._complain(lines[-1] if lines else f"its process ended with status {status}")
                return
            self._result_frames = results[-1]["environment_frames"]
            self.publish(results[-1], self._frames)
        except OSError as error:
            self._complain(str(error))

    def _complain(self, reason: str) -> None:
        """Warns, once: what fails now fails again most likely."""
        if not self._failed:
            self._failed = True
            work = self.work
            _log.warning("--%s: no %s: %s; see %s", work.flag, work.name, reason, work.log,
                         extra=FOR_USER)  # fmt: skip

    def _stop(self) -> None:
        process, self.process = self.process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def command(module: str, config: Config) -> tuple[str, ...]:
    """Returns what starts a process that plays with the newest checkpoint of a run."""
    given = Given.of(config).replace(
        mode="test", job_name="", device="cpu", checkpoint="newest", fresh=False, callbacks=""
    )
    # -P: modules in the current folder must not hide those of the same name that Python has.
    return (sys.executable, "-P", "-m", module, *configs.to_flags(given))


def result_line(name: str, result: Mapping[str, Any]) -> str:
    """Returns what such a process prints in the end; `name` is that of its `Work`.

    It has a line of its own: what the level has printed may lack a line's end, as progress bars do.
    """
    return f"\n{_beginning(name)}{json.dumps(result)}"


def _results(name: str, lines: Sequence[str]) -> list[Mapping[str, Any]]:
    """Returns what `result_line` has written; a level may print lines that begin as these do."""
    found = []
    for line in lines:
        if line.startswith(_beginning(name)):
            with contextlib.suppress(ValueError):
                found.append(json.loads(line.removeprefix(_beginning(name))))
    return [each for each in found if isinstance(each, dict) and "environment_frames" in each]


def _beginning(name: str) -> str:
    return f"{name}: "
