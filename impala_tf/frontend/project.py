"""The files that every machine needs: this project's, and modules of the user's own."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from impala_tf.config import Given

ROOT = Path(__file__).resolve().parents[2]
"""The checkout, or the folder that the package is installed in."""
_FILES = ("run_experiment.py", "pyproject.toml", "README.md", "LICENSE")
_FOLDERS = ("impala_tf",)
CONSTRAINTS = "impala_tf/constraints.txt"
"""The file that pins the versions of packages."""
_NOT_MODULES = ("procgen", "retro", "gym", "ALE")
"""What a level may have before its colon instead of a module."""
_EXCLUDED = ("__pycache__", "runs", "node_modules")
_MAX_BYTES = 10 << 20
"""Larger files in a level's package are not copied: they are data or videos."""


def own_names(given: Given) -> str:
    """Returns the names of levels and of the user's own code, comma separated.

    Levels may be MODULE:NAME; the others always are.
    """
    # Imported here: a Docker build uses this module before any package is installed.
    from impala_tf.config import plug_ins
    from impala_tf.config.own_levels import level_wrappers

    wrappers = (name for name, _ in level_wrappers(given["level_wrappers"]))
    named = (given["level_name"], *wrappers, *plug_ins.names(given.everything()))
    return ",".join(filter(None, named))


def files(level_name: str = "", root: Path = ROOT) -> dict[str, Path]:
    """Returns {path relative to the project: file} of every file that a machine needs.

    Args:
      level_name: the result of `own_names`. The module or package of MODULE:NAME is included if it
        is in the current folder or in the project, not if it is an installed package.
      root: the project's folder.
    """
    # An installed package has no run_experiment.py; __main__.py does the same.
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


def archive(paths: Mapping[str, Path], with_times: bool = True) -> bytes:
    """Returns a tar file.

    Args:
      paths: {name in the tar: file}.
      with_times: whether to keep the files' times. Without them, equal files give equal bytes.
    """
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for name, path in sorted(paths.items()):
            content = path.read_bytes()
            member = tarfile.TarInfo(name)  # without an owner, and with mode 0644
            member.size = len(content)
            member.mtime = int(path.stat().st_mtime) if with_times else 0
            tar.addfile(member, io.BytesIO(content))
    return made.getvalue()


def _inside(folder: Path, root: Path) -> dict[str, Path]:
    return {
        path.relative_to(root).as_posix(): path
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and path.stat().st_size <= _MAX_BYTES
        and not any(p in _EXCLUDED or p.startswith(".") for p in path.relative_to(folder).parts)
    }


def _modules(level_name: str) -> list[str]:
    """Returns the top-level modules of the user's own levels."""
    before = [level.partition(":")[0] for level in level_name.split(",") if ":" in level]
    tops = [name.split(".")[0] for name in before if "/" not in name]
    return [top for top in dict.fromkeys(tops) if top.isidentifier() and top not in _NOT_MODULES]
