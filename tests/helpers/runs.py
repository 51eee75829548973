"""Starts real runs and finds the processes that they leave behind."""

from __future__ import annotations

import contextlib
import csv
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from impala_tf.monitoring.status_file import read_status
from tests.helpers import times
from tests.helpers.waiting import wait_until

PROJECT = Path(__file__).resolve().parents[2]
_MARK = "IMPALA_TF_TEST_MARK"


class Run:
    """One `run_experiment.py` and every process that it starts.

    Args:
      flags: of run_experiment.py.
      cwd: where it runs.
      launcher: a command that starts it, such as horovodrun -np 2.
      environment: variables in addition to those of this process.
      script: in place of run_experiment.py.
    """

    def __init__(
        self,
        *flags: str,
        cwd: Path = PROJECT,
        launcher: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        script: Sequence[str] | None = None,
    ) -> None:
        self._mark = f"{_MARK}={uuid.uuid4().hex}"
        name, value = self._mark.split("=")
        script = script or [str(PROJECT / "run_experiment.py")]
        self.process = subprocess.Popen(
            [*launcher, sys.executable, *script, *flags],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=cwd,
            env={**os.environ, "PYTHONPATH": str(PROJECT), name: value, **(environment or {})},
            start_new_session=True,
        )

    def wait(self, timeout_s: float = 240) -> tuple[int, str, str]:
        """Returns exit status, standard output and standard error."""
        out, err = self.process.communicate(timeout=timeout_s)
        return self.process.returncode, out, err

    def wait_until(self, condition: Callable[[], bool], timeout_s: float = 240) -> None:
        """Waits for `condition` during the run; AssertionError if the run ends first."""

        def true_or_ended() -> bool:
            return condition() or self.process.poll() is not None

        wait_until(true_or_ended, timeout_s, poll_s=0.1)
        assert condition(), f"ended with {self.process.returncode}: {self.process.communicate()}"

    def alive(self) -> list[int]:
        """Returns the ids of all processes that descend from the run and are not dead.

        They are in its session or, if a launcher gave them another one, have its mark.
        """
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                marked = self._mark.encode() in (folder / "environ").read_bytes().split(b"\0")
                state, *ids = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
            except OSError:
                continue  # it ended a moment ago
            if (marked or int(ids[2]) == self.process.pid) and state not in "ZX":
                found.append(int(folder.name))
        return found

    def pid_of(self, flag: str) -> int:
        """Waits for a process of this run that has `flag` on its command line; returns its id."""

        def find() -> list[int]:
            return [pid for pid in self.alive() if flag in words_of(pid)]

        return int(wait_until(find, what=f"process with {flag}")[0])

    def end(self) -> None:
        """Kills every process that is left."""
        for pid in self.alive():
            _add_processor_time(pid)
            with contextlib.suppress(ProcessLookupError):  # it has ended with its parent
                os.kill(pid, 9)
        self.process.wait()


def _add_processor_time(pid: int) -> None:
    with contextlib.suppress(OSError):  # it has ended with its parent
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        times.killed_s += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def words_of(pid: int) -> list[str]:
    """Returns the command line of a process; [] if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return []  # it ended a moment ago


def rows(logdir: Path) -> list[dict[str, str]]:
    """Returns the rows of metrics.csv; [] if there is none yet."""
    path = logdir / "metrics.csv"
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def status(logdir: Path, name: str = "status.json") -> dict[str, Any]:
    """Returns the newest status of a learner; {} if there is none yet."""
    found = read_status(logdir / name)
    return dict(found) if found else {}


def checkpointed_frames(logdir: Path) -> int:
    """Returns the environment frames of the newest checkpoint; 0 if there is none yet."""
    checkpoint = status(logdir).get("checkpoint")
    return int(checkpoint["environment_frames"]) if checkpoint else 0
