"""The code of a run: the project's files and the user's own modules, on every machine.

On each other machine, it is in a folder that is named by what it contains, and a run uses its
folder until it ends. So a later launch does not change the code of running processes, and files
that were deleted from the project are not in the next run's folder.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from collections.abc import Iterable
from pathlib import Path

from impala_tf.cluster.plan import Plan
from impala_tf.cluster.requirements import ROOT
from impala_tf.cluster.runner import ClusterError, CommandRunner
from impala_tf.config import ConfigError, Given, plug_ins
from impala_tf.config.plug_ins import level_wrappers

NAME = "code.tar.gz"
PARENT = ".code"
"""The folder of the code of runs, in the workdir of a machine. Nothing removes what is there."""
_FILES = ("run_experiment.py", "pyproject.toml", "README.md", "LICENSE")
_NOT_MODULES = ("procgen", "retro", "gym", "ALE")
"""What a level may have before its colon instead of a module."""
_EXCLUDED = ("__pycache__", "runs", "node_modules")
_MAX_BYTES = 10 << 20
"""Larger files in a level's package are not copied: they are data or videos."""
_DIGITS = 16
# Unpacks into another folder, and renames it: a folder is complete or absent, even a shared one.
_UNPACK = (
    'mkdir -p -- "${0%/*}" && t=$(mktemp -d -- "$0.XXXXXX") || exit; '
    'tar -x -z -f - --no-same-owner -C "$t" || { s=$?; rm -rf -- "$t"; exit $s; }; '
    'mv -T -- "$t" "$0" 2>/dev/null || rm -rf -- "$t"; test -d "$0"'
)


def own_names(given: Given) -> list[str]:
    """Returns the names of levels and of the user's own code: MODULE:NAME, others for levels."""
    wrappers = [name for name, _ in level_wrappers(given["level_wrappers"])]
    levels = given["level_name"].split(",")
    return [*filter(None, levels), *wrappers, *plug_ins.names(given.everything())]


def files(names: Iterable[str] = (), root: Path = ROOT) -> dict[str, Path]:
    """Returns {path relative to the project: file} of every file that a machine needs.

    Args:
      names: the result of `own_names`. The module or package of MODULE:NAME is included if it is in
        the current folder or in the project, not if it is an installed package.
      root: the project's folder.
    """
    # An installed package has no run_experiment.py; __main__.py does the same.
    paths = {"run_experiment.py": root / "impala_tf" / "__main__.py"}
    paths |= {name: root / name for name in _FILES if (root / name).is_file()}
    paths |= _inside(root / "impala_tf", root)
    tops = (name.partition(":")[0].split(".")[0] for name in names if ":" in name)
    for module in tops:
        if not module.isidentifier() or module in _NOT_MODULES:
            continue
        for folder in (root, Path.cwd()):  # what is in the current folder wins
            if (folder / f"{module}.py").is_file():
                paths[f"{module}.py"] = folder / f"{module}.py"
            elif (folder / module).is_dir():
                paths |= _inside(folder / module, folder)
    return {name: path for name, path in paths.items() if path.is_file()}


def _inside(folder: Path, root: Path) -> dict[str, Path]:
    return {
        path.relative_to(root).as_posix(): path
        for path in folder.rglob("*")
        if path.is_file()
        and path.stat().st_size <= _MAX_BYTES
        and not any(p in _EXCLUDED or p.startswith(".") for p in path.relative_to(folder).parts)
    }


def pack(names: Iterable[str] = (), root: Path = ROOT) -> bytes:
    """Returns a compressed tar of `files` as they are now; equal files give equal bytes."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for name, path in sorted(files(names, root).items()):
            content = path.read_bytes()
            member = tarfile.TarInfo(name)  # without an owner or a time, and with mode 0644
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return gzip.compress(made.getvalue(), mtime=0)


def digest(archive: bytes) -> str:
    """Returns the name of the folder for a result of `pack`."""
    return hashlib.sha256(archive).hexdigest()[:_DIGITS]


def load(logdir: Path, wanted: str) -> bytes:
    """Returns the code of a run. Raises ConfigError if the logdir has not that of this digest."""
    archive = (logdir / NAME).read_bytes()
    if digest(archive) != wanted:
        raise ConfigError(f"{logdir / NAME}: is not the code that was launched; launch again")
    return archive


def with_code(plan: Plan, name: str) -> Plan:
    """Returns a plan whose other machines use this code. This machine uses the project itself."""
    nodes = (
        node if node.is_local else node._replace(code=f"{PARENT}/{name}") for node in plan.nodes
    )
    return plan._replace(nodes=tuple(nodes))


def install(runner: CommandRunner, archive: bytes) -> None:
    """Makes the folder with the code on a machine that lacks it. Raises ClusterError."""
    folder = runner.node.code
    if not folder or runner.run(["test", "-d", folder]).status != 1:
        return  # it is there, or the workdir is missing, which the check of the machine reports
    done = runner.run(["sh", "-c", _UNPACK, folder], archive, 300.0)
    if done.status != 0:
        raise ClusterError(f"{runner.name}: {folder}: {done.last_line}")
