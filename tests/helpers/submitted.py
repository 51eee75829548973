"""Runs that were submitted to a cluster of the tests' own."""

from __future__ import annotations

import abc
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.helpers.runs import PROJECT
from tests.helpers.waiting import wait_until


def printed_by(environment: Mapping[str, str], *command: str, cwd: Path = PROJECT) -> str:
    """Runs a command, with the variables of a cluster; returns what it prints."""
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=120, cwd=cwd
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Submitted(abc.ABC):
    """A run that was submitted.

    Args:
      environment: variables of commands that use the cluster.
      logdir: of the run.
    """

    def __init__(self, environment: Mapping[str, str], logdir: Path) -> None:
        self.environment, self.logdir = environment, logdir

    @abc.abstractmethod
    def explain(self) -> str:
        """Returns what to show if the run does not do what a test waits for."""

    def frontend(self, *words: str) -> str:
        command = [sys.executable, "-m", "frontend", *words, f"--logdir={self.logdir}"]
        return printed_by(self.environment, *command)

    def frames(self) -> int:
        path = self.logdir / "status.json"
        return int(json.loads(path.read_text())["environment_frames"]) if path.exists() else 0

    def wait_for_frames(self, more_than: int = 0) -> None:
        wait_until(lambda: self.frames() > more_than, explain=self.explain, poll_s=0.5)
