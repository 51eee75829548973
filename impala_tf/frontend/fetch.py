"""`fetch`: copies a run's files from its machines to this one."""

from __future__ import annotations

import contextlib
import io
import os
import posixpath
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from rich.console import Console

from impala_tf.config import ConfigError
from impala_tf.frontend import record, snapshot
from impala_tf.frontend.connection import NO_WORKDIR, CommandRunner
from impala_tf.frontend.errors import ClusterError
from impala_tf.frontend.operate import report
from impala_tf.frontend.parallel import connected, good, on_all, problems

# A machine has these files if a run was launched from it; with them here, `stop` would stop that
# run.
_OF_LAUNCHER = (record.NAME, snapshot.NAME)


class _LocalError(ClusterError):
    """A file cannot be written on this machine."""


def fetch(logdir: Path, to: Path | None, accept_new_host_keys: bool = False) -> int:
    """Copies a run's files from learner 0's machine, and all logs, but no private keys.

    Args:
      logdir: the run's logdir, on this machine.
      to: the folder to copy into. Default: `logdir`.
      accept_new_host_keys: whether to trust machines that SSH does not know yet.

    Returns:
      2 if a file cannot be written here, 1 if a machine cannot be asked, else 0.
    """
    run, target = record.load(logdir), to or logdir
    first = run.first_learner()
    with (
        _folder_in(target, "--logdir" if to is None else "--to") as aside,
        connected(run.plan.nodes, run.passwords(), accept_new_host_keys) as machines,
    ):
        # A machine that sees this folder in its logdir shares the target: nothing needs copying,
        # and the files that its processes write to must not be replaced.
        mark = aside.name

        def copy(runner: CommandRunner) -> int:
            node = runner.node
            if runner.run(["test", "-d", posixpath.join(node.logdir, mark)]).status == 0:
                return 0
            part = "." if node == first else "./processes"
            return _copy_folder(runner, node.logdir, part, target, aside / node.id)

        with Console(stderr=True).status("copying ..."):
            counts = on_all(machines.reached(), copy)
        lines = problems(machines.found) + problems(counts)
    files = sum(good(counts).values())
    print(f"{target}: {files} files from {len(good(counts))} machine(s)")
    status = report(lines)
    return 2 if any(isinstance(count, _LocalError) for count in counts.values()) else status


@contextlib.contextmanager
def _folder_in(target: Path, flag: str) -> Iterator[Path]:
    """Makes a temporary folder in `target`, which is created if it does not exist."""
    try:
        target.mkdir(parents=True, exist_ok=True)
        folder = tempfile.TemporaryDirectory(prefix=".fetch-", dir=target)
    except OSError as error:
        raise ConfigError(
            f"{flag}={target}: {error.strerror}; name a folder that can be written"
        ) from error
    with folder as path:
        yield Path(path)


def _copy_folder(runner: CommandRunner, logdir: str, what: str, target: Path, aside: Path) -> int:
    """Copies files to the folder `aside`; moves each to the target once it is complete."""
    command = ["tar", "-c", "-f", "-", "--exclude=./credentials", "--exclude=*.lock",
               "--exclude=./.mirror-*", *(f"--exclude=./{name}" for name in _OF_LAUNCHER),
               "--hard-dereference",
               "--ignore-failed-read", "--warning=no-file-changed", "-C", logdir, what]  # fmt: skip
    stream = runner.stream(["sh", "-c", 'exec "$@" 2>/dev/null', "sh", *command])
    count = 0
    try:
        with tarfile.open(fileobj=_Reader(stream.chunks()), mode="r|") as tar:
            for member in tar:
                if not (target / member.name).resolve().is_relative_to(target.resolve()):
                    raise ClusterError(f"{runner.node.name}: {logdir}: has {member.name}")
                try:
                    count += _take(tar, member, target, aside)
                except OSError as error:  # of this machine; those of others are ClusterErrors
                    raise _LocalError(f"{target / member.name}: {error.strerror}") from error
    except tarfile.TarError as error:
        if (status := runner.run(["test", "-d", logdir]).status) != 0:
            missing = runner.node.workdir if status == NO_WORKDIR else logdir
            raise ClusterError(f"{runner.node.name}: {missing}: no such folder there") from error
        raise ClusterError(f"{runner.node.name}: {logdir}: {error}") from error
    if (status := stream.finish()) > 1:  # 1: a log grew while it was read
        raise ClusterError(f"{runner.node.name}: {logdir}: tar ended with status {status}")
    return count


def _take(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path, aside: Path) -> int:
    """Extracts a member of a tar, if it is a folder or a file; returns the number of files."""
    if member.isdir():
        (target / member.name).mkdir(parents=True, exist_ok=True)
    elif member.isfile() and (source := tar.extractfile(member)) is not None:
        (target / member.name).parent.mkdir(parents=True, exist_ok=True)
        _write(source, aside / member.name, member)
        (aside / member.name).replace(target / member.name)
        return 1
    return 0


def _write(source: IO[bytes], path: Path, member: tarfile.TarInfo) -> None:
    """Writes a file of a tar. Before 3.11.4, tarfile itself has no safe way to extract."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        shutil.copyfileobj(source, file)
    path.chmod(member.mode & 0o755 | 0o600)
    os.utime(path, (member.mtime, member.mtime))


class _Reader(io.RawIOBase):
    """A file of the chunks of a stream."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._left = b""

    def read(self, size: int = -1) -> bytes:
        while len(self._left) < size:
            chunk = next(self._chunks, b"")
            if not chunk:
                break
            self._left += chunk
        taken, self._left = self._left[:size], self._left[size:]
        return taken
