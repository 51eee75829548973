"""The limits of the flags of engines (see `limits`)."""

from __future__ import annotations

import re
from typing import Any

from impala_tf.config.flag_values import BUILT_IN, ENGINE_FLAGS
from impala_tf.config.plug_ins import split


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
    if engine == "ssh" and not flags["workers_csv_path"]:
        lines.append("--engine=ssh: name the machines with --workers_csv_path=FILE")
    if engine == "slurm" and (flags["num_learners"] or 1) > 1 and not flags["slurm_actors"]:
        lines.append("--slurm_actors=0: several learners need nodes with actors; give 1 or more")
    return lines + (_ray(flags) if engine == "ray" else [])


def _ray(flags: dict[str, Any]) -> list[str]:
    lines = []
    try:
        pairs(flags["ray_learner_resources"])
    except ValueError as error:
        lines.append(f"--ray_learner_resources={flags['ray_learner_resources']}: {error}")
    lines += [
        f"--{name}: Ray decides it; leave the flag out"
        for name in ("min_learners", "end_command")
        if flags[name] is not None
    ]
    return lines


def pairs(text: str) -> dict[str, float]:
    """Returns {resource: amount} of a flag such as CPU=4,GPU=1.

    Raises:
      ValueError: a part of it is not NAME=NUMBER.
    """
    found = dict(re.findall(r" *([^=, ]+)=([0-9]+(?:\.[0-9]+)?) *(?:,|$)", text))
    if len(found) != len(split(text)):
        raise ValueError("must be such as CPU=4,GPU=1 or memory=8000000000")
    return {name: float(amount) for name, amount in found.items()}
