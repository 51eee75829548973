"""The code of a run: on each other machine, in a folder that is named by what it contains.

A run uses its folder until it ends. So a later launch does not change the code of running
processes, and files that were deleted from the project are not in the next run's folder.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from impala_tf.config import ConfigError
from impala_tf.frontend import project
from impala_tf.frontend.plan import Plan
from impala_tf.frontend.runner import ClusterError, CommandRunner
from impala_tf.logdir import replace_file

NAME = "code.tar.gz"
PARENT = ".code"
"""The folder of the code of runs, in the workdir of a machine. Nothing removes what is there."""
_DIGITS = 16
# Unpacks into another folder, and renames it: a folder is complete or absent, even a shared one.
_UNPACK = (
    'mkdir -p -- "${0%/*}" && t=$(mktemp -d -- "$0.XXXXXX") || exit; '
    'tar -x -z -f - --no-same-owner -C "$t" || { s=$?; rm -rf -- "$t"; exit $s; }; '
    'mv -T -- "$t" "$0" 2>/dev/null || rm -rf -- "$t"; test -d "$0"'
)


class Snapshot(NamedTuple):
    """The files that every machine of a run gets."""

    archive: bytes
    """A compressed tar file."""
    digest: str
    """A digest of the archive."""


def take(level_name: str, paths: Mapping[str, Path] | None = None) -> Snapshot:
    """Reads the project's files as they are now.

    Args:
      level_name: the result of `project.own_names`, whose modules are included.
      paths: {name: file}. Default: `project.files`.
    """
    paths = paths or project.files(level_name)
    archive = gzip.compress(project.archive(paths, with_times=False), mtime=0)
    return Snapshot(archive, _digest(archive))


def save(snapshot: Snapshot, logdir: Path) -> None:
    """Keeps a run's code, for machines that join the run later."""
    logdir.mkdir(parents=True, exist_ok=True)
    replace_file(logdir / NAME, snapshot.archive, 0o644)


def load(logdir: Path, digest: str) -> Snapshot:
    """Returns the code of a launched run. Raises ConfigError if the logdir has other code."""
    archive = (logdir / NAME).read_bytes()
    if _digest(archive) != digest:
        raise ConfigError(f"{logdir / NAME}: is not the code that was launched; launch again")
    return Snapshot(archive, digest)


def _digest(archive: bytes) -> str:
    return hashlib.sha256(archive).hexdigest()[:_DIGITS]


def with_code(plan: Plan, digest: str) -> Plan:
    """Returns a plan whose other machines use this code. This machine uses the project itself."""
    nodes = (
        node if node.is_local else node._replace(code=f"{PARENT}/{digest}") for node in plan.nodes
    )
    return plan._replace(nodes=tuple(nodes))


def install(runner: CommandRunner, snapshot: Snapshot) -> None:
    """Makes the folder with the code on a machine. Raises ClusterError if that fails."""
    command = ["sh", "-c", _UNPACK, runner.node.code]
    done = runner.run(command, snapshot.archive, 300.0)
    if done.status != 0:
        raise ClusterError(f"{runner.node.name}: {runner.node.code}: {done.last_line}")
