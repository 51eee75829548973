"""The flags of --engine=NAME: an engine's flags begin with its name."""

from __future__ import annotations

import dataclasses

from impala_tf.config.flag_types import NotNegative, Port, Positive


@dataclasses.dataclass(frozen=True)
class SlurmConfig:
    """--engine=slurm."""

    slurm_learners: Positive[int] = 1
    """--engine=slurm: nodes with a learner."""
    slurm_actors: NotNegative[int] = 1
    """--engine=slurm: nodes with actors. 0: one node does everything."""
    slurm_time: str = ""
    """--engine=slurm: time limit of the job, as sbatch's --time: 12:00:00, or 30 for 30 minutes.
    Two minutes before it ends, the run writes a checkpoint; then the job joins the queue again and
    resumes. Default: the partition's limit."""
    slurm_options: str = ""
    """--engine=slurm: sbatch options for all nodes, such as "--partition=x --account=y"."""
    slurm_learner_options: str = ""
    """--engine=slurm: more sbatch options for the nodes of learners, such as --gpus-per-node=1."""
    slurm_actor_options: str = ""
    """--engine=slurm: more sbatch options for the nodes of actors, such as --cpus-per-task=16."""


@dataclasses.dataclass(frozen=True)
class RayConfig:
    """--engine=ray."""

    ray_address: str = "auto"
    """--engine=ray: the cluster, such as 10.0.0.1:6379. This machine must be a node of it.
    auto: what RAY_ADDRESS says, or the cluster that runs here."""
    ray_learners: Positive[int] = 1
    """--engine=ray: how many learners. All of them and one actor start together, once there is
    room."""
    ray_actors: Positive[int] = 1
    """--engine=ray: how many actors. Those without room start when a node with room joins the
    cluster."""
    ray_learner_resources: str = "CPU=1"
    """--engine=ray: what a learner takes of its node, in Ray's terms: CPU=4,GPU=1."""
    ray_actor_resources: str = "CPU=1"
    """--engine=ray: what an actor takes of its node."""
    ray_port: Port[int] | None = None
    """--engine=ray: port of learner 0. Each other learner, and their rendezvous, use the next one.
    Default: free ones from 20000 to 32767."""
