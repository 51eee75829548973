"""What lies where in a logdir, and writing to disk so that no reader ever sees half of a file."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Logdir:
    """The paths of a run. Nothing is created by naming it."""

    path: Path

    @property
    def config(self) -> Path:
        """Every resolved flag, versions, protocol (JSON)."""
        return self.path / "config.json"

    @property
    def metrics(self) -> Path:
        """A row an interval (CSV)."""
        return self.path / "metrics.csv"

    @property
    def learner_metrics(self) -> Path:
        """A row a learner an interval (CSV), where there are several learners."""
        return self.path / "metrics-learners.csv"

    @property
    def tensorboard(self) -> Path:
        """Folder of the same numbers as events."""
        return self.path / "tensorboard"

    @property
    def checkpoints(self) -> Path:
        """Folder of the newest checkpoints."""
        return self.path / "checkpoints"

    def status(self, learner: int = 0) -> Path:
        """What a learner is doing right now (JSON); learner 0's is about the whole run."""
        return self.path / ("status.json" if learner == 0 else f"status-{learner}.json")

    @property
    def processes(self) -> Path:
        """Folder of what each process printed."""
        return self.path / "processes"

    @property
    def credentials(self) -> Path:
        """Folder of the run's certificates, mode 0700, its files 0600."""
        return self.path / "credentials"


def write_atomically(path: Path, text: str) -> None:
    """Replaces `path` by a file that holds `text`: readers see the old one or the new one.

    This is about readers and killed writers, not about power cuts: nothing is flushed to the disk.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def sync(path: Path) -> None:
    """Flushes a file's contents, or a folder's list of names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
