"""The flags of --engine=NAME: an engine's flags begin with its name."""

from __future__ import annotations

import dataclasses

from impala_tf.config.flag_types import NotNegative


@dataclasses.dataclass(frozen=True)
class SlurmConfig:
    """--engine=slurm."""

    slurm_actors: NotNegative[int] = 1
    """--engine=slurm: nodes with actors, besides those of --num_learners. 0: one node does
    everything."""
    slurm_options: str = ""
    """--engine=slurm: sbatch options for all nodes, such as "--time=12:00:00 --partition=x". Two
    minutes before a time limit, the run writes a checkpoint; then the job joins the queue again and
    resumes."""
    slurm_learner_options: str = ""
    """--engine=slurm: more sbatch options for the nodes of learners, such as --gpus-per-node=1."""


@dataclasses.dataclass(frozen=True)
class RayConfig:
    """--engine=ray: --num_learners and --num_actors (default 1) say how many there are of each.

    An actor takes one CPU of its node.
    """

    ray_learner_resources: str = "CPU=1"
    """--engine=ray: what a learner takes of its node, in Ray's terms: CPU=4,GPU=1."""
