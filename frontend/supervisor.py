"""Keeps one process running: `python -m frontend.supervisor SPEC`, the command of a tmux window.

It runs on the process's machine, and continues when the launcher exits. Standard library only.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from frontend import process_state as states
from frontend.group import GroupOverError, Membership, gloo_environment
from frontend.process_state import ProcessState, Spec

PARENT_VARIABLE = "IMPALA_TF_PARENT"
"""Tells the process the pid of its supervisor. The process exits when the supervisor does."""
STOP_TIMEOUT_S = 90.0
"""A learner takes about 20 s to stop and write its checkpoint, up to a minute on a busy machine. A
process that takes longer than this is killed."""
QUICK_FAILURE_S = 60.0
_UNUSABLE = 2  # exit status for unusable flags or files, which a restart would not help
_TICK_S = 0.2


def restart_delay_s(quick_failures: int) -> float:
    """Returns how long to wait after this many runs in a row shorter than QUICK_FAILURE_S."""
    return min(10.0 * 2 ** (quick_failures - 1), 120.0) if quick_failures else 1.0


class Supervisor:
    """Starts a process and restarts it when it fails, until it is done or told to stop."""

    def __init__(
        self,
        spec: Spec,
        delay_s: Callable[[int], float] = restart_delay_s,
        stop_timeout_s: float = STOP_TIMEOUT_S,
    ) -> None:
        self._spec = spec
        self._delay_s = delay_s
        self._stop_timeout_s = stop_timeout_s
        self._stopping = False
        self._window: BinaryIO | None = sys.stdout.buffer
        states.processes_folder(spec.logdir).mkdir(parents=True, exist_ok=True)
        self._state_path = states.state_path(spec.logdir, spec.name)
        self._log_path = states.log_path(spec.logdir, spec.name)
        self._log = self._log_path.open("ab", buffering=0)
        self._shown = self._log.tell()
        pid = os.getpid()
        self._state = ProcessState(spec.run_id, spec.name, pid, states.start_ticks(pid) or 0)

    def stop(self, *_: object) -> None:
        """Makes `run` stop the process and return. Can be a signal handler."""
        self._stopping = True

    def run(self) -> int:
        """Runs until the process is done, was stopped or cannot be run; returns the exit status."""
        self._update(state="meeting" if self._spec.seat else "running")
        member: Membership | None = None
        try:
            if self._spec.seat is not None:
                member = Membership(self._spec.seat, self._spec.run_id, self._log_event)
            self._keep_running(member)
        except GroupOverError as error:
            self._end("failed", f"the group of learners is over: {error}")
        except OSError as error:
            self._end("refused", f"cannot run: {error}")
        finally:
            if member is not None:
                if self._state.state in ("refused", "failed"):
                    member.leave(f"{self._spec.name}: {self._state.detail}")
                member.close()
        self._log.close()
        return {"finished": 0, "stopped": 0, "refused": _UNUSABLE}.get(self._state.state, 1)

    def _keep_running(self, member: Membership | None) -> None:
        quick_failures = 0
        while True:
            if member is not None:
                self._update(state="meeting")
                if not member.gather(lambda: self._stopping, self._wait):
                    return self._end("stopped", "before it was started")
            start_s = time.monotonic()
            status = self._run_once(member)
            ran_s = time.monotonic() - start_s
            if self._ended(status, ran_s):
                return None
            quick_failures = quick_failures + 1 if ran_s < QUICK_FAILURE_S else 0
            if not self._wait_to_restart(status, ran_s, self._delay_s(quick_failures)):
                return self._end("stopped", "while it waited for its restart")

    def _run_once(self, member: Membership | None) -> int:
        """Runs the process until it exits; returns its exit status, or -N for signal N."""
        argv = self._spec.argv
        process = subprocess.Popen(
            member.command(argv) if member else argv,
            cwd=self._spec.workdir,
            env={
                **os.environ,
                "PYTHONUNBUFFERED": "1",
                **(gloo_environment(self._spec.seat) if self._spec.seat else {}),
                **self._spec.environment,
                PARENT_VARIABLE: str(os.getpid()),
            },
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
        self._update(
            state="running",
            child_pid=process.pid,
            child_ticks=states.start_ticks(process.pid),
            started_unix_s=time.time(),
            exit_status=None,
            detail="",
        )
        stop_by_s: float | None = None
        while not _has_ended(process.pid):
            if self._stopping and stop_by_s is None:
                stop_by_s = time.monotonic() + self._stop_timeout_s
                process.terminate()
            if stop_by_s is not None and time.monotonic() > stop_by_s:
                self._log_event(f"did not stop within {self._stop_timeout_s:g} s, so it was killed")
                process.kill()
                stop_by_s = float("inf")
            self._wait(_TICK_S)
        # Kill what it left running. It is not reaped yet, so its group id cannot have been reused.
        os.killpg(process.pid, signal.SIGKILL)
        status = process.wait()
        self._update(child_pid=None, child_ticks=None, exit_status=status)
        return status

    def _ended(self, status: int, ran_s: float) -> bool:
        """Tells whether the process is over for good; if it is, records how."""
        limit, restarts = self._spec.max_restarts, self._state.restarts
        if status == 0:
            self._end("stopped" if self._stopping else "finished", "done")
        elif self._stopping:
            self._end("stopped", f"told to stop; {_describe(status)}")
        elif status == _UNUSABLE:
            self._end("refused", f"unusable flags or files ({_describe(status)}); see its log")
        elif limit is not None and restarts >= limit:
            text = f"{_describe(status)} after {ran_s:.0f} s; no restart is left"
            self._end("failed", f"{text} (--max_restarts={limit})")
        else:
            return False
        return True

    def _wait_to_restart(self, status: int, ran_s: float, delay_s: float) -> bool:
        """Waits before a restart; returns False if told to stop meanwhile."""
        self._state.restarts += 1
        limit = self._spec.max_restarts
        limit_text = "" if limit is None else f" of {limit}"
        self._update(state="waiting", detail=f"{_describe(status)} after {ran_s:.0f} s")
        self._log_event(
            f"{self._state.detail}; restart {self._state.restarts}{limit_text} in {delay_s:g} s"
        )
        until_s = time.monotonic() + delay_s
        while time.monotonic() < until_s and not self._stopping:
            self._wait(min(_TICK_S, until_s - time.monotonic()))
        return not self._stopping

    def _end(self, state: states.State, detail: str) -> None:
        self._update(state=state, detail=detail, ended_unix_s=time.time())
        self._log_event(f"{state}: {detail}")

    def _update(self, **changes: object) -> None:
        for name, value in changes.items():
            setattr(self._state, name, value)
        states.write_state(self._state_path, self._state)

    def _log_event(self, text: str) -> None:
        moment = time.strftime("%Y-%m-%d %H:%M:%S")
        self._log.write(f"--- {moment} {self._spec.name} {text}\n".encode())
        self._show_log()

    def _wait(self, seconds: float) -> None:
        time.sleep(max(0.0, seconds))
        self._show_log()

    def _show_log(self) -> None:
        """Prints what was added to the log, so that the window shows it."""
        with self._log_path.open("rb") as file:
            file.seek(self._shown)
            fresh = file.read()
        self._shown += len(fresh)
        if self._window is None or not fresh:
            return
        try:
            self._window.write(fresh)
            self._window.flush()
        except OSError:
            self._window = None  # The window was closed. The log continues.


def _has_ended(pid: int) -> bool:
    """Tells whether a child has exited, without reaping it."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _describe(status: int) -> str:
    if status < 0:
        return f"killed by {signal.Signals(-status).name}"
    return f"exit status {status}"


def main(arguments: list[str]) -> int:
    """Supervises the process of a spec file until it is over; returns the exit status."""
    if len(arguments) != 1:
        print("usage: python -m frontend.supervisor SPEC", file=sys.stderr)
        return _UNUSABLE
    spec = states.spec_from_json(Path(arguments[0]).read_text(encoding="utf-8"))
    supervisor = Supervisor(spec)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, supervisor.stop)
    return supervisor.run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
