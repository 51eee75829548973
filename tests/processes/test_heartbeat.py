"""The heartbeat file, by which a health check sees that a process is working."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from impala_tf.config import ConfigError
from impala_tf.processes.heartbeat import Heartbeat
from tests.helpers.clock import Clock
from tests.helpers.runs import Run


def test_a_beat_writes_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most once a second: fast levels beat a thousand times as often."""
    path = tmp_path / "beat"
    heartbeat = Heartbeat(str(path))
    assert not path.exists()
    heartbeat.beat()
    first = float(path.read_text())
    assert first == pytest.approx(time.monotonic(), abs=5)
    clock = Clock(first + 0.5)
    monkeypatch.setattr(time, "monotonic", clock)
    heartbeat.beat()
    assert float(path.read_text()) == first
    clock.now = first + 1.5
    heartbeat.beat()
    assert float(path.read_text()) == pytest.approx(first + 1.5, abs=0.01)


def test_the_file_of_an_earlier_process_is_removed(tmp_path: Path) -> None:
    (tmp_path / "beat").touch()
    Heartbeat(str(tmp_path / "beat"))
    assert not (tmp_path / "beat").exists()
    Heartbeat(None).beat()  # does nothing


def test_a_path_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="HEARTBEATS: .*: No such file"):
        Heartbeat(str(tmp_path / "nowhere" / "beat"))


@pytest.mark.long
@pytest.mark.end_to_end
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
