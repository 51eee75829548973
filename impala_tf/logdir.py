"""The files of a logdir, and how to write a file that readers never see half of."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

_OF_A_RUN = ("config.json", "metrics.csv", "checkpoints", "processes", "cluster.json")


@dataclasses.dataclass(frozen=True)
class Logdir:
    """The paths of a run. Creates nothing."""

    path: Path

    @property
    def config(self) -> Path:
        """Every resolved flag, versions, protocol (JSON)."""
        return self.path / "config.json"

    @property
    def config_file(self) -> Path:
        """The flags that repeat the run (YAML)."""
        return self.path / "config.yaml"

    @property
    def metrics(self) -> Path:
        """One row per interval (CSV)."""
        return self.path / "metrics.csv"

    @property
    def learner_metrics(self) -> Path:
        """One row per learner and interval (CSV), if there are several learners."""
        return self.path / "metrics-learners.csv"

    @property
    def level_metrics(self) -> Path:
        """One row per level and interval (CSV), if the agent learns several."""
        return self.path / "metrics-levels.csv"

    @property
    def tensorboard(self) -> Path:
        """Folder of the same metrics as TensorBoard events."""
        return self.path / "tensorboard"

    @property
    def checkpoints(self) -> Path:
        """Folder of the last checkpoints."""
        return self.path / "checkpoints"

    @property
    def best(self) -> Path:
        """Folder of the checkpoint with the best mean return."""
        return self.path / "best"

    @property
    def videos(self) -> Path:
        """Folder of the videos of --video_every."""
        return self.path / "videos"

    @property
    def evaluations(self) -> Path:
        """The results of --eval_every (CSV): a row for each level and checkpoint."""
        return self.path / "evaluation.csv"

    @property
    def callback_metrics(self) -> Path:
        """The metrics that callbacks return (CSV)."""
        return self.path / "callback_metrics.csv"

    @property
    def agent(self) -> Path:
        """What a folder that --to wrote has in place of config.json (JSON)."""
        return self.path / "agent.json"

    @property
    def is_exported(self) -> bool:
        """Whether this is such a folder. It has no run."""
        return self.agent.is_file() and not self.config.exists()

    def replay(self, learner: int) -> Path:
        """Folder of a learner's replay, with --save_replay."""
        return self.path / "replay" / f"learner-{learner}"

    def status(self, learner: int = 0) -> Path:
        """What a learner is doing now (JSON); learner 0's describes the whole run."""
        return self.path / ("status.json" if learner == 0 else f"status-{learner}.json")

    @property
    def processes(self) -> Path:
        """Folder of the processes' logs."""
        return self.path / "processes"

    @property
    def credentials(self) -> Path:
        """Folder of the run's certificates, mode 0700, its files 0600."""
        return self.path / "credentials"


def in_use(metrics: Path) -> bool:
    """Tells whether another process trains in a logdir: a learner keeps its metrics.csv locked."""
    try:
        with metrics.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def moved_aside(path: Path) -> Path | None:
    """Renames a run's folder to the first of NAME.1, NAME.2, ... that is free.

    Returns:
      its new path; None if the folder is missing or holds no run.

    Raises:
      OSError: it cannot be renamed.
    """
    path = path.absolute()
    if not any((path / name).exists() for name in _OF_A_RUN):
        return None
    free = (path.with_name(f"{path.name}.{number}") for number in itertools.count(1))
    target = next(each for each in free if not each.exists())
    path.rename(target)
    return target


@contextlib.contextmanager
def written_aside(path: Path) -> Iterator[Path]:
    """Yields a temporary name to write to; on success it replaces `path`, on failure it goes.

    Readers see the old file or the new one, also if the writer is killed. A power cut may still
    lose the new one: nothing is flushed to the disk (see `sync`).
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_atomically(path: Path, text: str) -> None:
    """Replaces `path` by a file that holds `text`; see `written_aside`."""
    with written_aside(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def sync(path: Path) -> None:
    """Flushes a file's content, or a folder's list of names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
