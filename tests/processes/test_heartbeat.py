"""The heartbeat file, by which a health check sees that a process is working."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from impala_tf.config import ConfigError
from impala_tf.processes.heartbeat import Heartbeat


def test_every_beat_writes_the_time(tmp_path: Path) -> None:
    path = tmp_path / "beat"
    heartbeat = Heartbeat(str(path))
    assert not path.exists()
    heartbeat.beat()
    first = float(path.read_text())
    assert first == pytest.approx(time.monotonic(), abs=5)
    time.sleep(0.01)
    heartbeat.beat()
    assert first < float(path.read_text()) < first + 5


def test_without_a_path_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Heartbeat(None).beat()
    assert list(tmp_path.iterdir()) == []


def test_the_file_of_an_earlier_process_is_removed(tmp_path: Path) -> None:
    (tmp_path / "beat").touch()
    Heartbeat(str(tmp_path / "beat"))
    assert not (tmp_path / "beat").exists()


def test_a_path_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--heartbeat_path=.*: No such file"):
        Heartbeat(str(tmp_path / "nowhere" / "beat"))
