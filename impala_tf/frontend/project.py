"""The files that every machine must have: this project's, and a level's own module."""

from __future__ import annotations

import hashlib
import os
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from impala_tf.frontend.errors import ClusterError

if TYPE_CHECKING:
    from impala_tf.config import Given

ROOT = Path(__file__).resolve().parents[2]
"""The checkout, or the folder that the package is installed in."""
_FILES = ("run_experiment.py", "pyproject.toml", "README.md", "LICENSE")
_FOLDERS = ("impala_tf",)
CONSTRAINTS = "impala_tf/constraints.txt"
"""Pins the versions of packages."""
_NOT_MODULES = ("procgen", "retro", "gym", "ALE")
"""What may stand before the colon of a level besides a module."""
_EXCLUDED = ("__pycache__", "runs", "node_modules")
PIECE_BYTES = 1 << 17
"""How much of a file is in memory for each machine that it is copied to."""
_MAX_BYTES = 10 << 20
"""Larger files beside a level's module are not copied: they are data or videos."""


def own_names(given: Given) -> str:
    """Returns the names of levels and of other code of the user's, comma separated.

    Some of the levels, and all others, are MODULE:NAME.
    """
    # Imported here: an image reads its lists of packages with this module before it has any.
    from impala_tf.config import plug_ins

    named = (given["level_name"], given["level_wrappers"], *plug_ins.names(given.everything()))
    return ",".join(filter(None, named))


def files(level_name: str = "", root: Path = ROOT) -> dict[str, Path]:
    """Returns {path relative to the project: file} of every file that a machine needs.

    Args:
      level_name: as `own_names` returns it. The module or package of MODULE:NAME is included if it
        lies in the current folder or in the project, and not among the installed packages.
      root: the project.
    """
    # An installed package has no script beside it; its command does the same.
    script = {"run_experiment.py": root / "impala_tf" / "__main__.py"}
    paths = script | {name: root / name for name in _FILES if (root / name).is_file()}
    for name in _FOLDERS:
        paths.update(_inside(root / name, root))
    for module in _modules(level_name):
        for folder in (Path.cwd(), root):
            single, package = folder / f"{module}.py", folder / module
            if single.is_file():
                paths[single.name] = single
            elif package.is_dir():
                paths.update(_inside(package, folder))
            else:
                continue
            break
    return {name: path for name, path in paths.items() if path.is_file()}


def digests(paths: Mapping[str, Path]) -> dict[str, str]:
    """Returns {name: SHA-256 of its file}."""
    return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in paths.items()}


def differing(expected: Mapping[str, str]) -> list[str]:
    """Returns the names in `expected` that are missing or different in this project."""
    present = {name: ROOT / name for name in expected if (ROOT / name).is_file()}
    here = digests(present)
    return [name for name, digest in expected.items() if here.get(name) != digest]


def pieces(paths: Mapping[str, Path], with_times: bool = True) -> Iterator[bytes]:
    """Yields a tar file with the files of {name in it: file}, in pieces.

    It never holds more than a piece: many machines are set up at once.

    Args:
      paths: the files.
      with_times: whether to keep when they were changed; if not, equal files make equal bytes.

    Raises:
      ClusterError: if a file becomes shorter meanwhile.
    """
    for name, path in paths.items():
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            member = tarfile.TarInfo(name)  # of nobody, and 0644
            member.size = status.st_size
            member.mtime = int(status.st_mtime) if with_times else 0
            yield member.tobuf()
            left = member.size
            while left > 0:
                piece = file.read(min(left, PIECE_BYTES))
                if not piece:
                    raise ClusterError(f"{path}: it was changed while it was copied")
                left -= len(piece)
                yield piece
        yield b"\0" * (-member.size % tarfile.BLOCKSIZE)
    yield b"\0" * (2 * tarfile.BLOCKSIZE)


def _inside(folder: Path, root: Path) -> dict[str, Path]:
    return {
        path.relative_to(root).as_posix(): path
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and path.stat().st_size <= _MAX_BYTES
        and not any(p in _EXCLUDED or p.startswith(".") for p in path.relative_to(folder).parts)
    }


def _modules(level_name: str) -> list[str]:
    """Returns the top-level modules that levels of one's own are in."""
    before = [level.partition(":")[0] for level in level_name.split(",") if ":" in level]
    tops = [name.split(".")[0] for name in before if "/" not in name]
    return [top for top in dict.fromkeys(tops) if top.isidentifier() and top not in _NOT_MODULES]
