"""The project's files, which every machine must have: `python -m frontend.project` compares them.

Standard library only.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_FILES = ("run_experiment.py", "pyproject.toml", "constraints.txt", "README.md", "LICENSE")
_FOLDERS = ("impala_tf", "frontend")


def manifest(root: Path = ROOT) -> dict[str, str]:
    """Returns {path relative to the project: SHA-256} of every file that a machine needs."""
    paths = [root / name for name in _FILES]
    paths += [
        path
        for folder in _FOLDERS
        for path in sorted((root / folder).rglob("*"))
        if "__pycache__" not in path.parts
    ]
    return {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in paths
        if path.is_file()
    }


def differing(expected: dict[str, str], root: Path = ROOT) -> list[str]:
    """Returns the paths in `expected` that are missing or different under `root`."""
    here = manifest(root)
    return [path for path, digest in expected.items() if here.get(path) != digest]


if __name__ == "__main__":
    print(json.dumps(differing(json.load(sys.stdin))))
