"""The content of config.json: what is needed to repeat a run."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from impala_tf import config as configs
from impala_tf.config import Config
from impala_tf.types import EnvironmentSpec

_PACKAGES = (
    "tensorflow",
    "tensorflow-cpu",
    "dm-sonnet",
    "gymnasium",
    "ale-py",
    "numpy",
    "grpcio",
    "horovod",
)


def describe(config: Config, spec: EnvironmentSpec) -> dict[str, Any]:
    """Returns what config.json holds, JSON-able.

    These are the resolved flags and where each has its value from (see `config.sources`), the
    level, package versions, the git commit and this machine.
    """
    return {
        "flags": configs.to_dict(config),
        "sources": configs.sources(config, spec.kind, spec.actions.kind == "continuous"),
        "level": {**spec._asdict(), "observation": _seen(spec), "actions": vars(spec.actions)},
        "protocol": spec.protocol,
        "versions": {"python": platform.python_version(), **_versions()},
        "git_commit": _git_commit(),
        "machine": machine(),
        "command": sys.argv,
    }


def machine() -> str:
    """Returns this machine's processor, cores and memory, in one line."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    cores = len(os.sched_getaffinity(0))
    return f"{_processor()}, {cores} core{'s' * (cores > 1)}, {pages / 2**30:.0f} GiB"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _versions() -> dict[str, str]:
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _git_commit() -> str | None:
    """Returns the commit of this project's checkout, with '+' if files were changed since."""
    here = Path(__file__).resolve().parent
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--abbrev=40", "--exclude=*"],
            cwd=here,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None  # no git, or not a checkout
    return described.stdout.strip()


def _seen(spec: EnvironmentSpec) -> dict[str, Any]:
    if isinstance(spec.observation, dict):
        return {part: vars(seen) for part, seen in spec.observation.items()}
    return vars(spec.observation)
