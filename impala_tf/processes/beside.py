"""A process beside learner 0 that plays with the newest checkpoint from time to time.

It has a low priority, so the learner and the actors come first, and a level that crashes in it does
no harm. Learner 0 starts it, so that local and launched runs share the code, and TensorBoard's
files have one writer.
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

_NICER = 10  # a tenth of a core if all are busy; with 19, a video would take ten times as long
_STOP_S = 5.0
_POLL_S = 0.2

_log = logging.getLogger("impala_tf.learner")


class Work(NamedTuple):
    """What a process beside the learner does."""

    name: str
    """The name of a result, such as "video"."""
    flag: str
    """The flag that asks for it, without --."""
    every: int
    """Environment frames from one result to the next."""
    log: Path
    """The output of the newest process."""
    command: tuple[str, ...]
    """The command of the process, without `Beside.arguments`."""
    longest_s: float
    """How long it may take: a game may never end."""
    longest_end_s: float
    """How long the end of a run may wait for it."""
    last: bool = False
    """Whether the run's last checkpoint always gets a result."""


class Beside(Callback, abc.ABC):
    """Regularly starts a process for a checkpoint, and passes on its results.

    There is one process at a time. Its last line is JSON, written by `result_line`. It plays with
    the newest checkpoint at its start. A failure is logged once, and never ends the run.

    Args:
      work: what the process does.

    Attributes:
      process: the process that runs, or has ended and was not collected yet; None if there is none.
    """

    def __init__(self, work: Work) -> None:
        self.work = work
        self.process: subprocess.Popen[bytes] | None = None
        self._began_at = 0.0
        # Processes end with the thread that starts them, and `learn` has a thread of its own.
        self._starter = ThreadPoolExecutor(1, thread_name_prefix=work.name)
        self._frames = 0  # in the last row
        self._next: int | None = None
        self._saved_frames = 0  # of the newest checkpoint
        self._result_frames = 0  # of the checkpoint of the last result
        self._failed = self._closed = False

    @abc.abstractmethod
    def publish(self, result: Mapping[str, Any], environment_frames: int) -> None:
        """Takes a result, and the environment frames of the last row. May raise OSError.

        The result has the "environment_frames" of its checkpoint.
        """

    def arguments(self) -> list[str]:
        """Returns more words for the command of the next process."""
        return []

    def tidy_up(self) -> None:
        """Removes files that a killed process has left."""

    @property
    def is_wanted(self) -> bool:
        """Whether a process is at work, or the newest checkpoint still needs one."""
        return not self._closed and (self.process is not None or self._is_last_wanted())

    def on_row(self, row: Mapping[str, Any]) -> None:
        """Passes on a complete result."""
        self._frames = int(row["environment_frames"])
        if self._next is None:
            self._schedule()
        self._collect()
        if self.process is not None and time.monotonic() - self._began_at > self.work.longest_s:
            self._stop()
            self._complain(f"it took longer than {self.work.longest_s / 60:.0f} minutes")

    def on_checkpoint(self, path: Path) -> None:
        """Starts a process if one is due and none is at work."""
        self._saved_frames = self._frames  # each checkpoint comes with a row
        if self._next is None or self._frames < self._next or self.process is not None:
            return
        self._schedule()
        self._begin()

    def close(self, may_wait: Callable[[], bool] = lambda: False) -> None:
        """Ends the process, and removes incomplete files.

        Args:
          may_wait: tells whether to go on waiting for the process, and for one for the last
            checkpoint, but for no longer than `Work.longest_end_s`.
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
        except OSError as error:  # such as a full disk, which must not end the run
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
        # Before the process has threads, which would keep the old priority.
        with contextlib.suppress(ProcessLookupError):
            os.setpriority(os.PRIO_PROCESS, self.process.pid, min(19, os.nice(0) + _NICER))

    def _await(self, goes_on: Callable[[], bool]) -> None:
        while self.process is not None and self.process.poll() is None and goes_on():
            time.sleep(_POLL_S)
        self._collect()

    def _collect(self) -> None:
        """Passes on the result of a process that has ended; logs once if it has none."""
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
        """Warns only once, as the next try will probably fail, too."""
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
    """Returns the command of a process that plays with the newest checkpoint of a run."""
    given = Given.of(config).replace(
        mode="test", job_name="", device="cpu", checkpoint="newest", fresh=False, callbacks=""
    )
    # -P: modules in the current folder must not hide those of the same name that Python has.
    return (sys.executable, "-P", "-m", module, *configs.to_flags(given))


def result_line(name: str, result: Mapping[str, Any]) -> str:
    """Returns the last output of such a process; `name` is the `Work`'s.

    It begins with a line break, because a level's own output, such as a progress bar, may lack one.
    """
    return f"\n{_beginning(name)}{json.dumps(result)}"


def _results(name: str, lines: Sequence[str]) -> list[Mapping[str, Any]]:
    """Returns the results of `result_line`, without similar lines that a level has printed."""
    results = []
    for line in lines:
        if line.startswith(_beginning(name)):
            with contextlib.suppress(ValueError):
                results.append(json.loads(line.removeprefix(_beginning(name))))
    return [
        result for result in results if isinstance(result, dict) and "environment_frames" in result
    ]


def _beginning(name: str) -> str:
    return f"{name}: "
