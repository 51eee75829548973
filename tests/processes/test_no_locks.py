"""A file system without file locks, such as Lustre without -o flock, is named as what is wrong."""

from __future__ import annotations

import errno
import fcntl
import os
import re
from pathlib import Path

import pytest

from impala_tf.config import ConfigError
from impala_tf.logdir import Logdir
from impala_tf.monitoring.writers import CsvWriter
from impala_tf.processes import run_folder

TEXT = "this file system has no file locks (Function not implemented); mount it with them"


@pytest.fixture(autouse=True)
def without_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets every lock fail as it does there."""

    def flock(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", flock)


def test_a_run_is_refused_in_a_line_that_names_the_flag(tmp_path: Path) -> None:
    text = re.escape(f"--logdir={tmp_path}: {TEXT}")
    with pytest.raises(ConfigError, match=text), run_folder.claimed(Logdir(tmp_path), fresh=False):
        pass


def test_a_learner_that_was_started_by_hand_is_refused_in_a_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"metrics.csv: {TEXT}")):
        CsvWriter(tmp_path / "metrics.csv").rewind(None)
