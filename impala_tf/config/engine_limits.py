"""The limits of the flags of engines (see `limits`)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from impala_tf.config.flag_values import BUILT_IN, ENGINE_FLAGS


def problems(flags: dict[str, Any]) -> list[str]:
    """Returns one line for each flag that does not fit --engine, or that needs it.

    Args:
      flags: {flag: value} of all flags.
    """
    engine, own = flags["engine"], f"{flags['engine']}_"
    lines = [
        f"--{name}: only with --engine={name.partition('_')[0]}"
        for name in ENGINE_FLAGS
        if name != "engine" and not name.startswith(own) and flags[name] != BUILT_IN[name]
    ]
    if (flags["num_learners"] or 1) > 1 and not flags["join"] and engine not in ("slurm", "ray"):
        lines.append(
            f"--num_learners={flags['num_learners']}: only with --join, --engine=slurm or"
            " --engine=ray; with --workers_csv_path, give each learner a row"
        )
    if not engine:
        return lines
    lines += [
        f"--{name}: --engine={engine} gives each process its part itself; leave the flag out"
        for name in ("job_name", "workers_csv_path", "join")
        if flags[name] and (engine, name) != ("ssh", "workers_csv_path")
    ]
    if engine != "ssh" and flags["min_actors"] is not None:
        lines.append(
            f"--min_actors: only with --workers_csv_path; --engine={engine} does not use it"
        )
    if flags["mode"] != "train":
        lines.append(f"--engine={engine}: trains; leave it out with --mode={flags['mode']}")
    of = {"ssh": _ssh, "slurm": _slurm, "ray": _ray}
    return lines + of[engine](flags)


def pairs(text: str) -> dict[str, str]:
    """Returns {NAME: VALUE} of a flag such as CPU=4,GPU=1.

    Raises:
      ValueError: a part of it is not NAME=VALUE, or a name is given twice.
    """
    values: dict[str, str] = {}
    for part in text.split(",") if text.strip() else ():
        name, equals, value = (word.strip() for word in part.partition("="))
        if not (name and equals and value):
            raise ValueError(f"{part.strip()!r} must be NAME=VALUE")
        if name in values:
            raise ValueError(f"{name} is given twice")
        values[name] = value
    return values


def _resources(
    flags: dict[str, Any], names: Sequence[str], problems: list[str]
) -> Iterator[tuple[str, dict[str, str]]]:
    """Yields --NAME=TEXT and the pairs of each flag; adds a line to `problems` for each bad one."""
    for name in names:
        flag = f"--{name}={flags[name]}"
        try:
            resources = pairs(flags[name])
        except ValueError as error:
            problems.append(f"{flag}: {error}")
        else:
            yield flag, resources


def _ssh(flags: dict[str, Any]) -> list[str]:
    if flags["workers_csv_path"]:
        return []
    return ["--engine=ssh: name the machines with --workers_csv_path=FILE"]


def _slurm(flags: dict[str, Any]) -> list[str]:
    if (flags["num_learners"] or 1) > 1 and not flags["slurm_actors"]:
        return ["--slurm_actors=0: several learners need nodes with actors; give 1 or more"]
    return []


def _ray(flags: dict[str, Any]) -> list[str]:
    lines: list[str] = []
    both = ("ray_learner_resources", "ray_actor_resources")
    for flag, resources in _resources(flags, both, lines):
        lines += [
            f"{flag}: {resource}={amount} must be an amount such as CPU=4 or memory=8000000000"
            for resource, amount in resources.items()
            if re.fullmatch(r"[0-9]+(\.[0-9]+)?", amount) is None
        ]
    if flags["min_learners"] is not None:
        lines.append("--min_learners: a run on Ray starts with all learners; leave the flag out")
    if flags["end_command"]:
        lines.append("--end_command: the nodes belong to the Ray cluster; leave the flag out")
    return lines
