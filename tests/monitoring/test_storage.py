"""What the learner does when its files cannot be written."""

from __future__ import annotations

import errno
import json
import logging
import os
from pathlib import Path

import pytest

from impala_tf.monitoring import status_file as statuses
from impala_tf.monitoring.status_file import read_status, write_status
from impala_tf.monitoring.storage import StorageWatch
from impala_tf.monitoring.writers import CsvWriter


def full(what: str = "x") -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), what)


def test_what_cannot_be_written_is_remembered_until_it_can(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    now = [100.0]
    storage = StorageWatch(lambda: now[0])
    for what in ("metrics", "a checkpoint"):
        with storage.attempt(what):
            pass
    assert storage.trouble() is None
    for now[0] in (200.0, 300.0):
        with storage.attempt("metrics"):
            raise full()
    with storage.attempt("a checkpoint"):
        raise full()
    for what, since_s in (("metrics", 200.0), ("a checkpoint", 300.0)):
        trouble = storage.trouble()
        assert trouble is not None and trouble["since_unix_s"] == since_s
        assert what in trouble["text"] and "No space left" in trouble["text"]
        with storage.attempt(what):
            pass
    assert storage.trouble() is None
    assert caplog.text.count("cannot write metrics") == 1  # not at every try
    assert "metrics: can be written again" in caplog.text


def test_only_a_first_write_that_proves_the_flags_may_not_fail() -> None:
    """The best checkpoint is a copy; without room for it, the run has all that it needs."""
    storage = StorageWatch()
    for error in (full(), ValueError()):
        with pytest.raises(type(error)), storage.attempt("the best checkpoint"):
            raise error
    assert storage.trouble() is None
    with storage.attempt("the best checkpoint", proven=True):
        raise full()
    assert storage.trouble() is not None
    storage.forget("the best checkpoint")
    assert storage.trouble() is None


def test_the_status_is_written_over_the_old_one_if_there_is_no_room_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "status.json"
    write_status(path, {"state": "training", "agent_steps": 1})  # type: ignore[typeddict-item]
    blocks = path.stat().st_size

    def no_room(path: Path, text: str) -> None:
        raise full(str(path))

    monkeypatch.setattr(statuses, "write_atomically", no_room)
    write_status(path, {"state": "training", "agent_steps": 22})  # type: ignore[typeddict-item]
    found = read_status(path)
    assert found is not None and found["agent_steps"] == 22
    assert path.stat().st_size == blocks
    path.write_text(json.dumps({"state": "training"})[:9])  # in the middle of such a write
    assert read_status(path) is None


def test_a_row_that_does_not_fit_leaves_no_half_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = CsvWriter(tmp_path / "m.csv", {"a": "", "b": ""})
    writer.write({"a": 1, "b": 2})
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:3]))
    with pytest.raises(OSError, match="No space left"):
        writer.write({"a": 33, "b": 44})
    monkeypatch.undo()
    writer.write({"a": 5, "b": 6})
    writer.close()
    assert (tmp_path / "m.csv").read_text() == "a,b\n1,2\n5,6\n"
