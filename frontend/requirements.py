"""What a machine must have installed: the project's own pins, and Horovod for several learners."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from frontend.project import ROOT

HOROVOD = "horovod==0.28.1"
# Horovod's build runs against the TensorFlow that is installed, with tools that know its set-up.
HOROVOD_BUILD_TOOLS = ("setuptools<70", "wheel", "packaging", "pyyaml", "psutil", "cloudpickle")
HOROVOD_BUILD_ENVIRONMENT = (
    "HOROVOD_WITH_TENSORFLOW=1",
    "HOROVOD_WITHOUT_PYTORCH=1",
    "HOROVOD_WITHOUT_MXNET=1",
    "HOROVOD_WITH_GLOO=1",
    "HOROVOD_WITHOUT_MPI=1",
)
PYTHON_VERSIONS = ((3, 11), (3, 12))
"""Oldest and newest."""


def dependencies(root: Path = ROOT) -> list[str]:
    """Returns the requirements of pyproject.toml that a run needs."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    listed: list[str] = project["dependencies"]
    return listed


def pinned(root: Path = ROOT, with_horovod: bool = False) -> dict[str, str]:
    """Returns {package: exact version} of the direct requirements, as constraints.txt has them."""
    wanted = {_canonical(name) for name in dependencies(root)}
    lines = (root / "constraints.txt").read_text(encoding="utf-8").splitlines()
    if with_horovod:
        wanted.add("horovod")
        lines.append(HOROVOD)
    pairs = (line.split("==", 1) for line in lines if "==" in line and not line.startswith("#"))
    return {
        name.strip(): version.split(";")[0].strip()
        for name, version in pairs
        if _canonical(name) in wanted
    }


def _canonical(requirement: str) -> str:
    name = re.split(r"[\s\[<>=!~;(]", requirement.strip(), maxsplit=1)[0]
    return re.sub(r"[-_.]+", "-", name).lower()
