"""A process that a local run starts, watches and restarts."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from impala_tf import config as configs
from impala_tf.config import Config, command_line
from impala_tf.logdir import Logdir
from impala_tf.process_lifetime import PARENT_VARIABLE

_SCRIPT = Path(__file__).resolve().parents[2] / "run_experiment.py"
_FIRST_RESTART_S, _LAST_RESTART_S = 1.0, 60.0


class Child:
    """A process of the run; its output goes to processes/NAME.log.

    Args:
      name: e.g. actor-0.
      config: of the process.
      logdir: of the run.
    """

    def __init__(self, name: str, config: Config, logdir: Logdir) -> None:
        self.name = name
        self.log = logdir.processes / f"{name}.log"
        self._command = [sys.executable, str(_SCRIPT), *configs.to_flags(config)]
        self._restart_s = _FIRST_RESTART_S
        self._restart_at: float | None = None
        self.start()

    def start(self) -> None:
        """Starts the process in its own session, so that Ctrl-C only reaches the parent."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, PARENT_VARIABLE: str(os.getpid())},
            )
        self._restart_at = None

    def poll(self) -> int | None:
        """Returns the exit status, None while the process runs; negative: killed by a signal."""
        return self._process.poll()

    def restart_when_due(self) -> str | None:
        """Restarts an ended process after a pause, longer each time; may return a message."""
        now = time.monotonic()
        if self._restart_at is None:
            self._restart_at = now + self._restart_s
            self._restart_s = min(2 * self._restart_s, _LAST_RESTART_S)
            left = self._restart_at - now
            return (
                f"{self.name} exited with {self.poll()}, restarting in {left:.0f} s; see {self.log}"
            )
        if now >= self._restart_at:
            self.start()
        return None

    def terminate(self) -> None:
        """Asks the process to stop."""
        if self.poll() is None:
            self._process.terminate()

    def end(self, patience_s: float) -> None:
        """Waits for the process, then kills it and every process that it started."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(patience_s)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def last_lines(self, count: int) -> list[str]:
        """Returns the last lines of the log."""
        lines = self.log.read_text(errors="replace").splitlines()
        return [line for line in lines if line.strip()][-count:]

    def problems(self) -> list[str]:
        """Returns why the process exited with status 2, as `command_line.fail` printed it."""
        lines = [
            line for line in self.last_lines(20) if line.startswith(command_line.PROBLEM_PREFIX)
        ]
        return [line.removeprefix(command_line.PROBLEM_PREFIX) for line in lines]
