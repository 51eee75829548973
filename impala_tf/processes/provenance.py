"""The content of config.json: what is needed to repeat a run."""

from __future__ import annotations

import contextlib
import datetime
import math
import platform
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from impala_tf import config as configs
from impala_tf.config import (
    Config,
    ConfigError,
    cores_here,
    memory_here,
    user_commands,
)
from impala_tf.config.flags import HERE
from impala_tf.logdir import Logdir, read_json
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


def describe(
    config: Config,
    spec: EnvironmentSpec,
    before: Mapping[str, Any],
    environment_frames: int,
    device: str,
) -> dict[str, Any]:
    """Returns what config.json holds, JSON-able.

    These are the resolved flags and where each has its value from (see `config.sources`), the
    level, package versions, the git commit, this machine with the learner's device, and a history:
    for each start of the run, the time, the frames so far, the commit, the machine, the command,
    and what changed of flags and protocol since the entry before. `before` is {} for a fresh run.
    """
    flags = configs.to_dict(config)
    versions = {"python": platform.python_version()}
    for name in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    here = {
        "git_commit": git_commit(),
        "machine": machine() if device == "CPU" else f"{machine()}, {device}",
        "command": sys.argv,
    }
    old_flags = before.get("flags", {})
    changed = {name: value for name, value in flags.items() if old_flags.get(name, ...) != value}
    entry = {
        "time": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "environment_frames": environment_frames,
        **here,
        "flags": changed,
        **({} if before.get("protocol") == spec.protocol else {"protocol": spec.protocol}),
    }
    return {
        "flags": flags,
        "sources": sources(config, spec),
        "level": spec.to_json(),
        "protocol": spec.protocol,
        "versions": versions,
        **here,
        "history": [*before.get("history", []), entry],
    }


def repeating(described: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the flags that repeat a run that `describe` described, in the order of --help.

    These are the level, the seed, what follows from the number of actors, which another machine has
    more or fewer of, and all that were given, but for those of this process alone.
    """
    flags, origins = described["flags"], described["sources"]
    of_process = configs.flags_of(HERE)
    kind = described["level"]["kind"]
    following = configs.following_actors(flags["preset"], kind, flags["algorithm"])
    always = {"level_name", "seed", *following}
    # Where actors wait, the batch is what they all send, and a larger one is never complete.
    if flags.get("synchronization", "none") != "none":
        always.discard("batch_size")
    return {
        name: value
        for name, value in flags.items()
        if name in always or (origins[name] == "given" and name not in of_process)
    }


def sources(config: Config, spec: EnvironmentSpec) -> dict[str, str]:
    """Returns where each flag of a config has its value from (see `config.sources`)."""
    return configs.sources(config, spec.kind, spec.actions.kind == "continuous")


def read(logdir: Logdir) -> dict[str, Any]:
    """Returns what config.json holds; {} if it is missing.

    Raises ConfigError: it is no run's, or the folder holds an exported agent, which must not
    change.
    """
    if logdir.is_exported:
        raise ConfigError(
            f"--logdir={logdir.path}: holds an exported agent, which only plays, with impala test;"
            " give the folder of a run (its config.yaml repeats its run: --config=FILE)"
        )
    try:
        described = {"sources": {}, **read_json(logdir.config)}
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"{logdir.config}: is not a run's config.json ({error!r})") from None
    parts = [described.get("flags"), described["sources"], described.get("level", {})]
    if not all(isinstance(part, dict) for part in parts):
        raise ConfigError(f"{logdir.config}: is not a run's config.json (no flags)")
    return described


def keep_offsets(spec: EnvironmentSpec, described: Mapping[str, Any]) -> EnvironmentSpec:
    """Returns a level's spec with what a run has subtracted from its observations.

    Days later, a look at the level may find other offsets, which the agent has not learned with.
    Raises ConfigError: those of config.json cannot be those of this level.
    """
    before = described.get("level", {})
    return spec if before.get("level_name") != spec.level_name else with_offsets(spec, before)


def with_offsets(spec: EnvironmentSpec, before: Mapping[str, Any]) -> EnvironmentSpec:
    """Returns a level's spec with the offsets of `before`, the JSON of the same level's spec."""
    offsets, parts = before.get("offsets", {}), before.get("parts", [])
    if offsets == spec.offsets and not spec.parts:
        return spec
    seen = spec.observation if isinstance(spec.observation, dict) else {"": spec.observation}
    try:
        for name, offset in offsets.items():
            numbers = np.asarray(offset)
            if numbers.dtype.kind not in "if" or not np.isfinite(numbers).all():
                raise ValueError(f"{name}: {offset} are no numbers")
            if numbers.size != math.prod(seen[name].shape):
                raise ValueError(f"{name}: {offset} are not {seen[name].shape}")
        of_levels = tuple(map(with_offsets, spec.parts, parts)) if parts else spec.parts
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise ConfigError(f"--level_name={spec.level_name}: offsets of the run: {error}") from None
    protocol = (
        spec.protocol if offsets == spec.offsets else str(before.get("protocol", spec.protocol))
    )
    return spec._replace(offsets=offsets, parts=of_levels, protocol=protocol)


def machine() -> str:
    """Returns the processor, and the cores and memory that this process may use, in one line."""
    cores, memory = cores_here(), memory_here()
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    processor = next(names, platform.machine())
    return f"{processor}, {cores} core{'s' * (cores > 1)}, {memory / 2**30:.0f} GiB"


def git_commit() -> str | None:
    """Returns the commit of this project's checkout, with '+' if files were changed since.

    None: this is no checkout, or there is no git.
    """
    if not user_commands.IS_CHECKOUT:
        return None  # git would find a repository of the user's around the package
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--abbrev=40", "--exclude=*"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None  # no git, or not a checkout
    return described.stdout.strip()
