"""The flags of the engines, Slurm and Ray, and what fits which engine.

Only the machine that submits a run needs them: the run's processes get none. They are here, and
not in `cluster.engines`, because `config` reads every command line and imports no launcher. The
flags of one engine begin with its name.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Annotated, Any, ClassVar, Literal

from impala_tf.config.entries import COMMAND, HERE, LAUNCH, NOT_NEGATIVE, RESUMED, USER, Scope
from impala_tf.config.plug_ins import split


@dataclasses.dataclass(frozen=True)
class EngineConfig:
    """What submits the run, such as Slurm."""

    SCOPE: ClassVar[Scope] = HERE | LAUNCH | RESUMED | USER
    engine: Annotated[Literal["", "ssh", "slurm", "ray"], COMMAND] = ""
    """ssh: launch the run on the machines of --workers_csv_path, which means this engine; slurm:
    submit the run as a job that starts --join on each of its nodes; ray: let a Ray cluster give
    each node of the run a place, and another one when that is lost (docs/engines.md has others).
    --dry_run prints what the engine would get."""
    slurm_actors: Annotated[int, NOT_NEGATIVE] = 1
    """--engine=slurm: nodes with actors, besides those of --num_learners. 0: one node does
    everything."""
    slurm_options: str = ""
    """--engine=slurm: sbatch options for all nodes, such as "--time=12:00:00 --partition=x". Two
    minutes before a time limit, the run writes a checkpoint; then the job joins the queue again and
    resumes."""
    slurm_learner_options: str = ""
    """--engine=slurm: more sbatch options for the nodes of learners, such as --gpus-per-node=1."""
    ray_learner_resources: str = "CPU=1"
    """--engine=ray: what a learner takes of its node, in Ray's terms: CPU=4,GPU=1."""


_NOT_WITH = {
    "": (),
    "ssh": ("job_name", "join"),
    "slurm": ("job_name", "join", "workers_csv_path", "min_actors"),
    "ray": (
        "job_name",
        "join",
        "workers_csv_path",
        "min_actors",
        "min_learners",
        "end_command",
    ),
}
"""{engine: flags that it does not take}."""


def problems(flags: dict[str, Any]) -> list[str]:
    """Returns one line for each flag that does not fit --engine, or that needs it."""
    engine, learners = flags["engine"], flags["num_learners"] or 1
    defaults = {field.name: field.default for field in dataclasses.fields(EngineConfig)}
    lines = [
        f"--{name}: only with --engine={name.partition('_')[0]}"
        for name, default in defaults.items()
        if not name.startswith(("engine", f"{engine}_")) and flags[name] != default
    ]
    lines += [
        f"--{name}: --engine={engine} gives each process its part itself; leave the flag out"
        for name in _NOT_WITH[engine]
        if flags[name]
    ]
    if learners > 1 and not flags["join"] and engine not in ("slurm", "ray"):
        lines.append(
            f"--num_learners={learners}: only with --join, --engine=slurm or --engine=ray; with"
            " --workers_csv_path, give each learner a row"
        )
    if engine and flags["mode"] != "train":
        lines.append(f"--engine={engine}: trains; leave it out with impala {flags['mode']}")
    if engine == "ssh" and not flags["workers_csv_path"]:
        lines.append("--engine=ssh: name the machines with --workers_csv_path=FILE")
    if engine == "slurm" and learners > 1 and not flags["slurm_actors"]:
        lines.append("--slurm_actors=0: several learners need nodes with actors; give 1 or more")
    try:
        amounts(flags["ray_learner_resources"])
    except ValueError as error:
        lines.append(f"--ray_learner_resources={flags['ray_learner_resources']}: {error}")
    return lines


def amounts(text: str) -> dict[str, float]:
    """Returns {resource: amount} of a flag such as CPU=4,GPU=1.

    Raises:
      ValueError: a part of it is not NAME=NUMBER.
    """
    found = dict(re.findall(r" *([^=, ]+)=([0-9]+(?:\.[0-9]+)?) *(?:,|$)", text))
    if len(found) != len(split(text)):
        raise ValueError("must be such as CPU=4,GPU=1 or memory=8000000000")
    return {name: float(amount) for name, amount in found.items()}
