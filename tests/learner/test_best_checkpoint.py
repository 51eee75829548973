"""The best checkpoint, and what of it stays on a full disk."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from typing import Any

import pytest

from impala_tf.learner.best_checkpoint import BestCheckpoint
from impala_tf.logdir import Logdir
from impala_tf.monitoring.rows import Score


def test_half_a_copy_of_the_best_checkpoint_is_removed(tmp_path: Path, monkeypatch: Any) -> None:
    """On a full disk, copies under new names would keep it full."""
    checkpoint = tmp_path / "checkpoints" / "ckpt-1"
    checkpoint.mkdir(parents=True)
    (checkpoint / "variables").write_text("whole")

    def half(source: Path, folder: Path) -> None:
        (folder / source.name).write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copy2", half)
    with pytest.raises(OSError, match="No space") as caught:
        BestCheckpoint(Logdir(tmp_path)).keep(checkpoint, Score(1.0, 1000))
    assert caught.value.strerror == "No space left on device", "the display would show a list"
    assert list((tmp_path / "best").iterdir()) == []
