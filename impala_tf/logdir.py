"""The files of a logdir, and atomic writing of files."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import json
import os
import secrets
import stat
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any

_MOST_JSON_BYTES = 64 * 2**20
LAUNCH_ID = "launch_id"
"""A file with the id of a launch on machines, whose record is in the user's home."""
_OF_A_RUN = ("config.json", "metrics.csv", "checkpoints", "processes", LAUNCH_ID)


class Logdir:
    """The paths of a run's files. It creates none."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.json"  # every resolved flag, versions, protocol
        self.config_file = path / "config.yaml"  # the flags that repeat the run
        self.run = path / "run.json"  # what the processes of this machine get from their parent
        self.metrics = path / "metrics.csv"  # one row per interval
        self.level_metrics = path / "metrics-levels.csv"  # also per level, if several
        self.tensorboard = path / "tensorboard"  # folder of the same metrics as TensorBoard events
        self.checkpoints = path / "checkpoints"  # folder of the last checkpoints
        self.best = path / "best"  # folder of the checkpoint with the best mean return
        self.videos = path / "videos"  # folder of the videos of --video_every
        self.evaluations = path / "evaluation.csv"  # --eval_every: a row per level and checkpoint
        self.callback_metrics = path / "callback_metrics.csv"  # what callbacks return
        self.agent = path / "agent.json"  # in place of config.json, in a folder that --to wrote
        self.processes = path / "processes"  # folder of the processes' logs
        self.evaluator_run = self.processes / "evaluator-run.json"  # as `run`
        self.evaluator_log = self.processes / "evaluator.log"
        self.evaluator_result = self.processes / "evaluator.json"  # until the learner has read it
        self.credentials = path / "credentials"  # folder of the certificates, 0700, its files 0600

    @property
    def is_exported(self) -> bool:
        """Whether this is an exported folder, which has no run."""
        return self.agent.is_file() and not self.config.exists()

    def status(self, learner: int = 0) -> Path:
        """Returns the file of a learner's current state (JSON); learner 0's is of the whole run."""
        return self.path / ("status.json" if learner == 0 else f"status-{learner}.json")


def in_use(metrics: Path) -> bool:
    """Returns whether a process trains in a logdir: a learner keeps its metrics.csv locked."""
    try:
        with metrics.open("rb") as file:
            lock(file.fileno(), metrics, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (FileNotFoundError, NoLocksError):  # no learner can run without locks
        return False
    except BlockingIOError:
        return True
    return False


class NoLocksError(OSError):
    """A file system has no file locks; `strerror` says this and what to do."""


def lock(descriptor: int, path: Path, operation: int) -> None:
    """Locks an open file. The kernel releases the lock when the process ends, however it ends.

    Raises BlockingIOError: another process has locked it, and `operation` (see `fcntl.flock`) has
    LOCK_NB; NoLocksError: the file system has no locks, like Lustre without its option flock.
    """
    try:
        fcntl.flock(descriptor, operation)
    except BlockingIOError:
        raise
    except OSError as error:
        text = (
            f"this file system has no file locks ({error.strerror}); mount it with them (Lustre: -o"
            " flock), or give a --logdir on a local disk, and --mirror to copy the run"
        )
        raise NoLocksError(error.errno, text, str(path)) from error


def holds_run(path: Path) -> bool:
    """Returns whether a folder has files of a run."""
    return any((path / name).exists() for name in _OF_A_RUN)


def no_run(path: Path) -> str:
    """Returns why a folder cannot be used as a run's logdir, for messages."""
    if path.exists():
        return "holds no run (no config.json)"
    return "no such folder" if path.is_absolute() else f"no such folder in {Path.cwd()}"


def moved_aside(path: Path) -> Path | None:
    """Renames a run's folder to the first free name of NAME.1, NAME.2, ...; returns the new path.

    None: the folder holds no run, and stays.
    """
    path = path.absolute()
    if not holds_run(path):
        return None
    candidates = (path.with_name(f"{path.name}.{number}") for number in itertools.count(1))
    target = next(candidate for candidate in candidates if not candidate.exists())
    try:
        return path.rename(target)
    except FileNotFoundError:  # another machine that shares the folder has renamed it
        return None


def open_regular(path: Path) -> BufferedReader:
    """Opens a file that somebody else may have put there.

    Raises:
      OSError: it cannot be read, or reading could wait or never end, as from a FIFO or a device.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "is no regular file", str(path))
    return os.fdopen(descriptor, "rb")


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON object that somebody else may have written.

    Raises:
      OSError: see `open_regular`.
      ValueError: it is too large, or no JSON object.
    """
    with open_regular(path) as file:
        content = file.read(_MOST_JSON_BYTES + 1)
    if len(content) > _MOST_JSON_BYTES:
        raise ValueError(f"has more than {_MOST_JSON_BYTES:,} bytes")
    try:
        value = json.loads(content)
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError("is no JSON object")
    return value


@contextlib.contextmanager
def written_aside(path: Path) -> Iterator[Path]:
    """Yields a temporary file to write. On success it replaces `path`; on failure it is removed.

    Its name cannot be guessed. Readers see either the old file or the new one, even if the writer
    is killed. A power cut may still lose the new one, because nothing is flushed to the disk (see
    `sync`).
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        with contextlib.suppress(OSError):  # the first error says more
            temporary.unlink(missing_ok=True)


def write_atomically(path: Path, text: str) -> None:
    """Replaces `path` by a file with the content `text`, in a new folder if there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_aside(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def replace_file(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Replaces a file atomically; see `written_aside`.

    Raises:
      OSError: the file cannot be written; the error has its name.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    try:
        with written_aside(path) as temporary:
            descriptor = os.open(temporary, flags, mode)
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def os_error(message: str, path: Path) -> OSError:
    """Returns the system's error that is contained in TensorFlow's long message about a file."""
    for code in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES):
        if os.strerror(code) in message:
            return OSError(code, os.strerror(code), str(path))
    return OSError(errno.EIO, message.splitlines()[0], str(path))


def sync(path: Path) -> None:
    """Flushes a file's content, or a folder's list of names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
