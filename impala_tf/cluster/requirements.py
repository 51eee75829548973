"""Which packages a machine needs: pyproject.toml lists them, constraints.txt pins their versions.

`python3 -m impala_tf.cluster.requirements actor|learner [TENSORFLOW]` prints a role's list, one
requirement per line. TENSORFLOW replaces `tensorflow` by another distribution of the same version,
such as tensorflow-cpu. Standard library only: a Docker build uses it before anything is installed.
"""

from __future__ import annotations

import importlib.metadata
import re
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, cast

ROOT = Path(__file__).resolve().parents[2]
"""The checkout, or the folder that the package is installed in."""
CONSTRAINTS = "impala_tf/constraints.txt"
"""The file that pins the versions of packages."""
Role = Literal["actor", "learner"]
PYTHON_VERSIONS = ((3, 11), (3, 12))
"""Oldest and newest."""
LEARNER_GIB, ACTOR_GIB, TENSORFLOW_ACTOR_GIB = 1.0, 0.2, 0.6
"""Peak memory of a process with few environments; large networks and batches take more."""


def of_role(role: Role, root: Path = ROOT, extras: Sequence[str] = ()) -> list[str]:
    """Returns the requirements of a role, in the order of pyproject.toml.

    These are `dependencies`, the extra `learner` for learners, and `extras`. Horovod is not
    included, because it has to be compiled: see install_horovod.sh.
    """
    lists: dict[str, list[str]] = {"": []}
    if (file := root / "pyproject.toml").is_file():
        project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
        lists = {"": project["dependencies"], **project.get("optional-dependencies", {})}
    else:  # an installed package
        for line in importlib.metadata.requires("impala_tf") or ():
            requirement, _, marker = (part.strip() for part in line.partition(";"))
            extra = re.search(r"extra == ['\"]([^'\"]+)", marker)
            lists.setdefault(extra[1] if extra else "", []).append(requirement)
    names = ["", *(["learner"] if role == "learner" else []), *extras]
    return list(dict.fromkeys(requirement for name in names for requirement in lists[name]))


def pinned(
    role: Role, with_horovod: bool = False, root: Path = ROOT, extras: Sequence[str] = ()
) -> dict[str, str]:
    """Returns {package: exact version in constraints.txt} of a role's direct requirements."""
    required = {_canonical(name) for name in of_role(role, root, extras)}
    if with_horovod:
        required.add("horovod")
    lines = (root / CONSTRAINTS).read_text(encoding="utf-8").splitlines()
    pairs = (line.split("==", 1) for line in lines if "==" in line and not line.startswith("#"))
    return {
        name.strip(): version.split(";")[0].strip()
        for name, version in pairs
        if _canonical(name) in required
    }


def _canonical(requirement: str) -> str:
    name = re.split(r"[\s\[<>=!~;(]", requirement.strip(), maxsplit=1)[0]
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    role, tensorflow = [*sys.argv[1:], "tensorflow"][:2]
    for requirement in of_role(cast(Role, role)):
        print(re.sub("^tensorflow(?===)", tensorflow, requirement))
