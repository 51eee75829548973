"""Fixtures that run run_experiment.py: in its own process, or in this one."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import run_experiment
from tests.helpers.runs import Run


@pytest.fixture
def start() -> Iterator[Callable[..., Run]]:
    """Starts run_experiment.py with the given flags; kills what is left when the test ends."""
    started: list[Run] = []

    def start_run(*flags: str, **settings: Any) -> Run:
        started.append(Run(*flags, **settings))
        return started[-1]

    yield start_run
    for run in started:
        run.end()


@pytest.fixture
def run_here(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Calls run_experiment.main() in this process, which may not start other processes.

    Returns exit status, standard output and standard error, like `Run.wait`.
    """

    def no_child(*_: object) -> None:
        pytest.fail("a process was started")

    def run(*flags: str) -> tuple[int, str, str]:
        monkeypatch.setattr("impala_tf.processes.local_run.Node", no_child)
        monkeypatch.setattr(sys, "argv", ["run_experiment.py", *flags])
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a command before this one ignores it
        capsys.readouterr()
        return run_experiment.main(), *capsys.readouterr()

    return run
