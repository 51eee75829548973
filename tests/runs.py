"""Starts real runs for tests and finds what they leave behind."""

from __future__ import annotations

import csv
import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
_MARK = "IMPALA_TF_TEST_MARK"


class Run:
    """One `run_experiment.py` and everything that it starts.

    Args:
      flags: of it.
      cwd: where it runs.
      launcher: a command that starts it, such as horovodrun -np 2.
      environment: what it is given beside this process' own.
    """

    def __init__(
        self,
        *flags: str,
        cwd: Path = PROJECT,
        launcher: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._mark = f"{_MARK}={uuid.uuid4().hex}"
        name, value = self._mark.split("=")
        self.process = subprocess.Popen(
            [*launcher, sys.executable, str(PROJECT / "run_experiment.py"), *flags],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=cwd,
            env={**os.environ, "PYTHONPATH": str(PROJECT), name: value, **(environment or {})},
        )

    def wait(self, timeout_s: float = 240) -> tuple[int, str, str]:
        """Returns exit status, standard output and standard error."""
        out, err = self.process.communicate(timeout=timeout_s)
        return self.process.returncode, out, err

    def wait_until(self, condition: Callable[[], bool], timeout_s: float = 120) -> None:
        """Waits for `condition` while the run goes on; AssertionError if it ends before."""

        def true_or_ended() -> bool:
            return condition() or self.process.poll() is not None

        wait_until(true_or_ended, timeout_s)
        assert condition(), f"ended with {self.process.returncode}: {self.process.communicate()}"

    def alive(self) -> list[int]:
        """Returns the ids of all processes that descend from the run and are not dead."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                marked = self._mark.encode() in (folder / "environ").read_bytes().split(b"\0")
                state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue  # ended meanwhile
            if marked and state not in "ZX":
                found.append(int(folder.name))
        return found

    def end(self) -> None:
        """Ends whatever is left."""
        for pid in self.alive():
            os.kill(pid, 9)
        self.process.wait()


def wait_until(condition: Callable[[], bool], timeout_s: float = 120) -> None:
    """Waits for `condition`; AssertionError if it does not come true."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)


def free_port() -> int:
    """Returns a port of this machine that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def rows(logdir: Path) -> list[dict[str, str]]:
    """Returns the rows of metrics.csv; [] before there is one."""
    path = logdir / "metrics.csv"
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))
