"""Nodes of --join whose logdir cannot be used."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from impala_tf.config import Config, ConfigError, Given
from impala_tf.frontend import join
from impala_tf.frontend.node import state as files


def started(logdir: Path) -> str:
    """Starts learner 0's node, which must be refused; returns the line."""
    with pytest.raises(ConfigError) as caught:
        join.run_node(
            Given({"join": True, "job_name": "learner", "task": 0, "logdir": str(logdir),
                   "learner_hosts": "127.0.0.1:8001", "actor_hosts": "127.0.0.2:8001"}),
            Config(),
        )  # fmt: skip
    (line,) = caught.value.problems
    return line


def test_a_second_process_that_is_the_same_node_says_so_and_changes_no_orders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It waited for ever without a word, and the first got its orders."""
    monkeypatch.setattr(join, "LOCK_WAIT_S", 0.6)
    path = files.lock_path(tmp_path, "node-learner-0")
    path.parent.mkdir()
    with path.open("w") as first:
        fcntl.flock(first, fcntl.LOCK_EX)
        line = started(tmp_path)
    assert line.startswith(f"--logdir={tmp_path}: another process is node-learner-0 there; stop it")
    assert capsys.readouterr().out == (
        f"{path}: another process is node-learner-0; waiting until it ends\n"
    )
    assert not files.orders_path(tmp_path, "node-learner-0").exists()


def test_a_disk_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", flock)
    assert started(tmp_path).startswith(f"--logdir={tmp_path}: this file system has no file locks")


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(path: Path, value: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(files, "write", write)
    full = "cannot write there: No space left on device"
    assert started(tmp_path) == f"--logdir={tmp_path}: {full}"
