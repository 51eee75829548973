"""The heartbeat file, by which a health check sees that a process is working."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from impala_tf.config import ConfigError
from impala_tf.processes.actor_main import Heartbeat
from tests.helpers.clock import Clock
from tests.helpers.runs import Run


def test_a_beat_writes_the_time_once_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fast levels beat a thousand times as often. An earlier process's file says nothing."""
    path = tmp_path / "beat"
    path.touch()
    heartbeat = Heartbeat(str(path))
    assert not path.exists()
    clock = Clock(7.0)
    monkeypatch.setattr(time, "monotonic", clock)
    for clock.now, told in ((7.0, 7.0), (7.5, 7.0), (8.5, 8.5)):
        heartbeat.beat()
        assert float(path.read_text()) == told
    with pytest.raises(ConfigError, match="HEARTBEATS: .*: No such file"):
        Heartbeat(str(tmp_path / "nowhere" / "beat"))


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
    run.wait_until(lambda: float(beats.read_text()) > first + 12, timeout_s=90)
