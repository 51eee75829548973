"""The heartbeat file, by which a health check sees that a process is working."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.runs import Run


def test_the_beats_continue_while_an_unroll_takes_minutes(
    start: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a cluster would kill the actors of slow levels in the middle of each unroll."""
    beats, log = tmp_path / "beats-0", tmp_path / "run" / "processes" / "actor-0.log"
    monkeypatch.setenv("IMPALA_TF_HEARTBEATS", str(tmp_path / "beats"))
    run = start(
        "--level_name=tests.helpers.worlds:PacedCartPole-v1", "--num_actors=1",
        "--unroll_length=2000", f"--logdir={tmp_path / 'run'}",
    )  # fmt: skip
    run.wait_until(lambda: log.exists() and "acting in" in log.read_text())
    first = float(beats.read_text())
    run.wait_until(lambda: float(beats.read_text()) > first + 3)
