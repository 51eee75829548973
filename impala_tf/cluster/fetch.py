"""`fetch`: copies a run's files from its machines to this one."""

from __future__ import annotations

import os
import re
import shutil
import tarfile
import tempfile
from pathlib import Path

from rich.console import Console

from impala_tf.cluster import code, record
from impala_tf.cluster.machines import connected, good, on_all, problems
from impala_tf.cluster.operate import report
from impala_tf.cluster.runner import ClusterError, CommandRunner

# What a machine may send, which may be rented: neither keys, nor what a later command runs, nor
# more than a run can have.
_RESULTS = re.compile(
    r"(\./)?((config\.(json|yaml)|(metrics|metrics-levels|evaluation|callback_metrics)\.csv"
    r"|evaluation\.(json|mp4)|status(-\d+)?\.json)"
    r"|(checkpoints|best|tensorboard|videos)/.+|processes/[^/]+\.log(\.1)?)"
)
MOST_FILES = 100_000
_MOST_BYTES, _MOST_LOGS_BYTES = 256 << 30, 4 << 30
_PADDING_BYTES = 1 << 20  # at most: tar fills its last record


def fetch(logdir: Path, to: Path | None) -> int:
    """Copies a run's results from learner 0's machine, and the logs of all machines.

    Args:
      logdir: the run's logdir, on this machine.
      to: the folder to copy into. Default: `logdir`.

    Returns:
      1 if a machine cannot be asked, else 0.

    Raises:
      OSError: a file cannot be written here.
    """
    run, target = record.load(logdir), to or logdir
    first = run.first_learner()
    target.mkdir(parents=True, exist_ok=True)
    new_folder = tempfile.TemporaryDirectory(
        prefix=".fetch-", dir=target, ignore_cleanup_errors=True
    )
    with (
        new_folder as aside,
        connected(run.plan.nodes, run.passwords()) as machines,
    ):

        def copy(runner: CommandRunner) -> int:
            node = runner.node
            # A machine that sees this folder in its logdir shares the target: nothing needs
            # copying, and the files that its processes write to must not be replaced.
            if runner.run(["test", "-d", f"{node.logdir}/{Path(aside).name}"]).status == 0:
                return 0
            what = (".", _MOST_BYTES) if node == first else ("./processes", _MOST_LOGS_BYTES)
            return _copy_folder(runner, *what, target, Path(aside, node.id))

        with Console(stderr=True).status("copying ..."):
            counts = on_all(machines.reached(), copy)
        lines = problems(machines.found) + problems(counts)
    files = sum(good(counts).values())
    print(f"{target}: {files} files from {len(good(counts))} machine(s)")
    return report(lines)


def _copy_folder(
    runner: CommandRunner, part: str, most_bytes: int, target: Path, aside: Path
) -> int:
    """Copies files to the folder `aside`; moves each to the target once it is complete."""
    where = f"{runner.name}: {runner.node.logdir}"
    excluded = ("./credentials", "*.lock", "./.mirror-*", f"./{code.NAME}")
    command = ["tar", "-c", "-f", "-", *(f"--exclude={name}" for name in excluded)]
    command += ["--hard-dereference", "--ignore-failed-read", "--warning=no-file-changed"]
    command += ["-C", runner.node.logdir, part]
    running = runner.start(["sh", "-c", 'exec "$@" 2>/dev/null', "sh", *command])
    sent = count = size = 0
    try:
        with tarfile.open(fileobj=running.output, mode="r|") as tar:
            for member in tar:
                if not (target / member.name).resolve().is_relative_to(target.resolve()):
                    raise ClusterError(f"{where}: has {member.name!r}")
                sent, size = sent + 1, size + member.size
                if sent > MOST_FILES or size > most_bytes:
                    raise ClusterError(f"{where}: sends more than a run can have")
                if _RESULTS.fullmatch(member.name) and member.isfile():
                    _take(tar, member, aside / member.name, target / member.name)
                    count += 1
    except tarfile.TarError as error:
        raise ClusterError(f"{where}: {error}; is that folder there?") from error
    running.output.read(_PADDING_BYTES)  # or it is ended while it still writes these
    if (status := running.finish()) > 1:  # 1: a log grew while it was read
        raise ClusterError(f"{where}: tar ended with status {status}")
    return count


def _take(tar: tarfile.TarFile, member: tarfile.TarInfo, aside: Path, path: Path) -> None:
    """Writes a file of a tar. Before 3.11.4, tarfile itself has no safe way to extract."""
    source = tar.extractfile(member)
    assert source is not None, "it is no file"
    aside.parent.mkdir(parents=True, exist_ok=True)
    with aside.open("wb") as file:
        shutil.copyfileobj(source, file)
    aside.chmod(member.mode & 0o644 | 0o600)
    os.utime(aside, (member.mtime, member.mtime))
    path.parent.mkdir(parents=True, exist_ok=True)
    aside.replace(path)
