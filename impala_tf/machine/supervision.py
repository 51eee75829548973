"""Keeps a process running: restarts it when it fails, and stops it cleanly.

Used by local runs and, on every machine of a launched run, by cluster/node/supervisor.py. Standard
library only, and no dataclasses, whose import takes memory that cheap machines lack.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

from impala_tf.machine import process_output
from impala_tf.machine.process_lifetime import BEGAN, PARENT_VARIABLE, TOLD_VARIABLE

STOP_TIMEOUT_S = 90.0
"""A learner takes about 20 s to stop and write its checkpoint, up to a minute on a busy machine. A
process that takes longer than this is killed."""
LEARNER_RESTARTS = 3
"""How often a failed learner is restarted in an hour. Actors are always restarted."""
UNUSABLE_INPUT = 2
"""Exit status for unusable flags, files or callbacks, which a restart would not help."""
USELESS = 3
"""Exit status of a process that has itself tried often enough, so that a restart would not help.
Its last line says why."""
REGROUP = 4
"""Exit status of a learner that must restart with another group of learners, because one was lost
or has returned. This is not a failure."""
LEFT_WORK = 256
"""In place of exit status 0: the process did not say that it was done. A level has called exit."""
REGROUP_SIGNAL = signal.SIGUSR2
"""Makes a learner end its group with REGROUP, after a checkpoint. SIGTERM would end the whole
run."""
ENDED_AS_TOLD = (None, 0, REGROUP, -signal.SIGINT, -signal.SIGTERM, 130, 143)
"""Exit statuses of a learner that has stopped as told, and lost nothing."""
_GROUP_VARIABLE = "IMPALA_TF_GROUP"
_QUICK_S, _GOOD_S, _HOUR_S = 60.0, 600.0, 3600.0
_REGROUP_PAUSE_S = 1.0
_TICK_S = 0.2
_CANNOT_RUN = (FileNotFoundError, NotADirectoryError, PermissionError)
"""Errors from starting a process that another try would not solve."""

State = Literal[
    Literal["starting", "gathering", "running", "waiting"],
    Literal["left", "finished", "stopped", "refused", "failed"],
]
"""gathering: waits for the other learners. left: stopped with its machine, to be restarted when the
machine is back."""
OVER: tuple[State, ...] = ("finished", "stopped", "refused", "failed")
ENDED_WELL: tuple[State, ...] = ("finished", "stopped")
TOLD_TO_STOP = "told to stop"
"""The detail of a process that stopped as told, if no reason was given."""


class GiveUpError(Exception):
    """The process must not be started again; the message says why."""


class Command(NamedTuple):
    """What to run."""

    name: str
    """Such as learner-0 or actor-2."""
    argv: tuple[str, ...]
    workdir: str
    log_path: str
    """The file for the process's output, and for a line about each restart."""
    environment: Mapping[str, str] = {}
    """Variables in addition to this process's own."""
    max_restarts: int | None = None
    """How many restarts are allowed in an hour. None: no limit."""
    proven_after_s: float = 0.0
    """Until it has once run for this long, an exit status other than 0 ends it for good."""
    stop_timeout_s: float = STOP_TIMEOUT_S
    """How long it may take to stop before it is killed."""


class ProcessState(NamedTuple):
    """The state of a process."""

    name: str
    state: State = "starting"
    pid: int | None = None
    pid_ticks: int | None = None
    """See `start_ticks`; a pid alone may have been reused."""
    restarts: int = 0
    started_unix_s: float | None = None
    """When it was last started."""
    ended_unix_s: float | None = None
    exit_status: int | None = None
    """-N if signal N killed it."""
    detail: str = ""
    """One line for people."""


class RestartBudget:
    """Limits how often a process is restarted in an hour, with a pause before each restart."""

    def __init__(self, per_hour: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_hour = per_hour
        self._clock = clock
        self._spent: list[float] = []
        self._quick_failures = 0

    def pause_s(self, ran_s: float) -> float | None:
        """Returns the pause before the next restart; None if no restart is left in this hour.

        The pauses grow from 2 s to 2 minutes while every run fails within a minute. After ten good
        minutes, the whole budget is available again.
        """
        now = self._clock()
        if ran_s >= _GOOD_S:
            self.refill()
        self._spent = [moment for moment in self._spent if now - moment < _HOUR_S]
        if self._per_hour is not None and len(self._spent) >= self._per_hour:
            return None
        self._spent.append(now)
        if ran_s >= _QUICK_S:
            self._quick_failures = 0
            return 1.0
        self._quick_failures += 1
        return float(min(2 * 3 ** min(self._quick_failures - 1, 9), 120))

    def refill(self) -> None:
        """Makes the whole budget available again, and the next pause short."""
        self._spent.clear()
        self._quick_failures = 0


class Members(NamedTuple):
    """The learners that train together. A supervisor tells its learner in a variable."""

    numbers: tuple[int, ...]
    """In ascending order, which is the order of their ranks."""
    away_since_unix_s: Mapping[int, float] = {}
    """{number of another learner of the run: since when it is away}."""

    def variables(self) -> dict[str, str]:
        """Returns the variables that a supervisor adds to a learner's environment."""
        return {_GROUP_VARIABLE: json.dumps(self)}

    @classmethod
    def from_environment(cls) -> Members | None:
        """Returns the members of this learner; None without a supervisor or other learners."""
        text = os.environ.get(_GROUP_VARIABLE)
        if text is None:
            return None
        numbers, away = json.loads(text)
        return cls(tuple(numbers), {int(number): since for number, since in away.items()})


class SupervisedProcess(threading.Thread):
    """Runs a command, and restarts it when it fails, until it is done or told to stop.

    Start it like any thread. The kernel ends the command if this process dies, see
    `impala_tf.machine.process_lifetime.stop_with_parent`.
    """

    def __init__(
        self,
        command: Command,
        on_event: Callable[[str], None] = lambda text: None,
        before_start: Callable[[Callable[[], bool]], bool] | None = None,
        budget: RestartBudget | None = None,
        on_end: Callable[[ProcessState], None] = lambda state: None,
        environment: Callable[[], Mapping[str, str]] = dict,
        in_group: bool = False,
    ) -> None:
        """Does not start the command yet.

        `before_start` waits until the process may start; it gets a function that tells whether to
        stop waiting, returns whether to start, and may raise GiveUpError. `on_event` gets one line
        for every exit and restart, `on_end` the last state, both from this thread. `environment` is
        called before every start for more variables. `in_group`: it is a learner of a group, which
        continues without it when it leaves.
        """
        super().__init__(name=f"supervise {command.name}", daemon=True)
        self.command = command
        self.state = ProcessState(command.name)
        self._on_event = on_event
        self._before_start = before_start
        self._budget = budget or RestartBudget(command.max_restarts)
        self._on_end = on_end
        self._environment = environment
        self._in_group = in_group
        self._stopping = self._leaving = False
        self._stop_reason = TOLD_TO_STOP
        self._restarting = self._regrouping = self._killing = False
        self._proven = False
        self._started_s = time.monotonic()

    def stop(self, leaving: bool = False, reason: str = TOLD_TO_STOP) -> None:
        """Asks the process to stop; the thread ends when it has. Returns at once.

        Args:
          leaving: whether to start it again when its machine is back.
          reason: the detail of its state; the first call's reason is kept.
        """
        if not self._stopping:
            self._stop_reason = reason
        self._leaving = leaving or (self._leaving and self._stopping)
        self._stopping = True

    def restart(self) -> None:
        """Makes the process stop and start again, without using its budget. Returns at once."""
        self._restarting = True

    def kill(self) -> None:
        """Kills the process, which counts as a failure: it is restarted. Returns at once."""
        self._killing = True

    def regroup(self) -> bool:
        """Sends REGROUP_SIGNAL to a running process; returns whether this is the first time.

        The process ends as after `stop`, and starts again.
        """
        is_first, self._regrouping = not self._regrouping, True
        return is_first

    @property
    def runs_s(self) -> float:
        """How long a running process has been running, in seconds, by the monotonic clock."""
        return time.monotonic() - self._started_s

    @property
    def over(self) -> bool:
        """Whether the process has ended for good."""
        return self.state.state in OVER or self.state.state == "left"

    def run(self) -> None:
        """Runs until the process is over."""
        try:
            self._keep_running()
        except GiveUpError as reason:
            self._end("failed", str(reason))
        except _CANNOT_RUN as error:
            self._end("refused", f"cannot run: {error}")
        except BaseException as error:
            self._end("failed", f"its supervisor failed: {error!r}")
            raise

    def _keep_running(self) -> None:
        while True:
            if self._before_start is not None:
                self._update(state="gathering")
                if not self._before_start(lambda: self._stopping):
                    return self._end("stopped", "before it was started")
            if self._stopping:
                return self._end("stopped", "before it was started")
            self._restarting = self._regrouping = self._killing = False
            start_s = time.monotonic()
            status = self._run_once_or_fail()
            ran_s = time.monotonic() - start_s
            if self._restarting and not self._stopping:
                self._count_restart("restarted on request")
                continue
            if self._ended(status, ran_s):
                return None
            if not self._wait_to_restart(status, ran_s):
                return None

    def _run_once_or_fail(self) -> int:
        """Like `_run_once`; a failed start, such as for lack of memory, counts as a failed run."""
        try:
            with os.fdopen(os.memfd_create("told"), "rb") as told:
                return self._run_once(told.fileno())
        except _CANNOT_RUN:
            raise
        except OSError as error:
            self._event(f"could not be started: {error}")
            return os.EX_OSERR

    def _run_once(self, told: int) -> int:
        """Runs the process until it exits; returns its exit status, or -N for signal N.

        Args:
          told: see `process_lifetime.TOLD_VARIABLE`.
        """
        command = self.command
        path = Path(command.log_path)
        path.parent.mkdir(parents=True, exist_ok=True)
        environment = {
            **os.environ,
            "PYTHONUNBUFFERED": "1",
            **self._environment(),
            **command.environment,
            PARENT_VARIABLE: str(os.getpid()),
            TOLD_VARIABLE: str(told),
        }
        with path.open("ab") as log:
            pid = _start(command, environment, log, told)
        self._started_s = time.monotonic()
        self._update(
            state="running",
            pid=pid,
            pid_ticks=start_ticks(pid),
            started_unix_s=time.time(),
            exit_status=None,
            detail="",
        )
        kill_at_s: float | None = None
        without_reaping = os.WEXITED | os.WNOHANG | os.WNOWAIT
        while os.waitid(os.P_PID, pid, without_reaping) is None:
            if (self._stopping or self._restarting) and kill_at_s is None:
                kill_at_s = time.monotonic() + command.stop_timeout_s
                goes_on = self._in_group and self._stopping and self._leaving
                os.kill(pid, REGROUP_SIGNAL if goes_on else signal.SIGTERM)
            if self._regrouping and kill_at_s is None:
                kill_at_s = time.monotonic() + command.stop_timeout_s
                os.kill(pid, REGROUP_SIGNAL)
            if kill_at_s is not None and time.monotonic() > kill_at_s:
                self._event(f"did not stop within {command.stop_timeout_s:g} s, so it was killed")
                os.kill(pid, signal.SIGKILL)
                kill_at_s = float("inf")
            if self._killing:
                self._killing = False
                os.kill(pid, signal.SIGKILL)
            process_output.limit(path)
            time.sleep(_TICK_S)
        # Kill what it has left running. It is not reaped yet, so its group id was not reused.
        os.killpg(pid, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if status == 0 and os.pread(told, 2, 0) == BEGAN:
            status = LEFT_WORK
        self._update(pid=None, pid_ticks=None, exit_status=status)
        return status

    def _ended(self, status: int, ran_s: float) -> bool:
        """Tells whether the process is over for good; if it is, records how."""
        self._proven = self._proven or ran_s >= self.command.proven_after_s
        if status == 0 and self._stopping:
            self._end("stopped", self._stop_reason)
        elif status == 0:
            self._end("finished", "done")
        elif status == UNUSABLE_INPUT:  # even while stopping: a callback may raise at the end
            self._end(
                "refused",
                f"unusable flags, files or callbacks ({describe(status)}){self._cause(status)}",
            )
        elif self._stopping:
            self._end("stopped", f"{self._stop_reason}; {describe(status)}")
        elif status == USELESS or (status > 0 and not self._proven):
            self._end("failed", f"{describe(status)} after {ran_s:.0f} s{self._cause(status)}")
        else:
            return False
        return True

    def _wait_to_restart(self, status: int, ran_s: float) -> bool:
        """Waits before a restart; if there will be none, records that and returns False."""
        reason = f"{describe(status)} after {ran_s:.0f} s{self._cause(status)}"
        pause_s = _REGROUP_PAUSE_S if status == REGROUP else self._budget.pause_s(ran_s)
        if pause_s is None:
            limit = self.command.max_restarts
            self._end("failed", f"{reason}; no restart is left ({limit} an hour)")
            return False
        self._count_restart(reason)
        self._event(f"{reason}; restart {self.state.restarts} in {pause_s:g} s")
        until_s = time.monotonic() + pause_s
        while time.monotonic() < until_s and not (self._stopping or self._restarting):
            time.sleep(_TICK_S)
        self._restarting = False
        if self._stopping:
            self._end("stopped", "while it waited for its restart")
        return not self._stopping

    def _cause(self, status: int) -> str:
        """Returns ': ' and the last line of the output; '' if the process cannot know the cause."""
        if status == -signal.SIGKILL:
            return ""
        line = process_output.last_line(Path(self.command.log_path))
        return f": {line}" if line else ""

    def _count_restart(self, detail: str) -> None:
        self._update(state="waiting", restarts=self.state.restarts + 1, detail=detail)

    def _end(self, state: State, detail: str) -> None:
        if state == "stopped" and self._leaving:
            state = "left"
        self._event(f"{state}: {detail}")
        self._update(state=state, detail=detail, pid=None, ended_unix_s=time.time())
        self._on_end(self.state)

    def _update(self, **changes: Any) -> None:
        self.state = self.state._replace(**changes)

    def _event(self, text: str) -> None:
        moment = time.strftime("%Y-%m-%d %H:%M:%S")
        try:
            with Path(self.command.log_path).open("a", encoding="utf-8") as log:
                log.write(f"{process_output.EVENT}{moment} {self.command.name} {text}\n")
        except OSError as error:  # a full disk must not end a process that still works
            text = f"{text} (not in its log: {error})"
        self._on_event(text)


def start_ticks(pid: int) -> int | None:
    """Returns when a process started, in clock ticks since boot; None if it has exited.

    Source: proc(5), /proc/PID/stat, fields 3 (state) and 22 (starttime).
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def describe(status: int) -> str:
    """Returns an exit status in words."""
    if status < 0:
        return f"killed by {signal.Signals(-status).name}"
    if status == LEFT_WORK:
        return "its code, or that of a level, called exit (exit status 0)"
    return "its group ended" if status == REGROUP else f"exit status {status}"


def _start(command: Command, environment: Mapping[str, str], log: IO[bytes], told: int) -> int:
    """Starts a command in a process group of its own; returns its process id. Raises OSError."""
    process = subprocess.Popen(
        command.argv,
        cwd=command.workdir,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        pass_fds=(told,),
        process_group=0,  # so that Ctrl-C in a terminal reaches this process only
    )
    process.returncode = 0  # so that Popen does not wait for it: the caller does
    return process.pid
