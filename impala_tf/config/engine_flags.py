"""The flags of --engine=NAME: an engine's flags begin with its name."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class SlurmConfig:
    """--engine=slurm."""

    slurm_learners: int = 1
    """--engine=slurm: nodes with a learner."""
    slurm_actors: int = 1
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
class KubernetesConfig:
    """--engine=kubernetes."""

    kubernetes_learners: int = 1
    """--engine=kubernetes: pods with a learner. The volume of several must be ReadWriteMany."""
    kubernetes_actors: int = 1
    """--engine=kubernetes: pods with actors, each with --actors_per_node of them.
    Default of that: one per CPU in --kubernetes_actor_resources."""
    kubernetes_namespace: str = ""
    """--engine=kubernetes: an existing namespace. Default: that of kubectl's context."""
    kubernetes_learner_image: str = "impala-tf-learner:latest"
    """--engine=kubernetes: image of learners, from docker/Dockerfile, in your registry."""
    kubernetes_actor_image: str = "impala-tf-actor:latest"
    """--engine=kubernetes: image of actors."""
    kubernetes_learner_resources: str = "cpu=2,memory=8Gi"
    """--engine=kubernetes: what a pod with a learner gets: NAME=QUANTITY, comma separated, such as
    cpu=8,memory=32Gi,nvidia.com/gpu=1."""
    kubernetes_actor_resources: str = "cpu=1,memory=2Gi"
    """--engine=kubernetes: what a pod with actors gets."""
    kubernetes_storage: str = "10Gi"
    """--engine=kubernetes: size of the volume that is claimed for the logdir."""
    kubernetes_storage_class: str = ""
    """--engine=kubernetes: storage class of that volume. Default: the cluster's."""
    kubernetes_claim: str = ""
    """--engine=kubernetes: an existing volume claim for the logdir, in place of a new one."""


@dataclasses.dataclass(frozen=True)
class SkypilotConfig:
    """--engine=skypilot."""

    skypilot_learners: int = 1
    """--engine=skypilot: nodes with a learner."""
    skypilot_actors: int = 1
    """--engine=skypilot: nodes with actors. SkyPilot gives all nodes the same resources."""
    skypilot_resources: str = ""
    """--engine=skypilot: what it looks for, as in its YAML: NAME=VALUE, comma separated, such as
    infra=aws,cpus=16+,use_spot=true."""


@dataclasses.dataclass(frozen=True)
class RayConfig:
    """--engine=ray."""

    ray_address: str = "auto"
    """--engine=ray: the cluster, such as 10.0.0.1:6379. This machine must be a node of it.
    auto: what RAY_ADDRESS says, or the cluster that runs here."""
    ray_learners: int = 1
    """--engine=ray: how many learners. All of them and one actor start together, once there is
    room."""
    ray_actors: int = 1
    """--engine=ray: how many actors. Those without room start when a node with room joins the
    cluster."""
    ray_learner_resources: str = "CPU=1"
    """--engine=ray: what a learner takes of its node, in Ray's terms: CPU=4,GPU=1."""
    ray_actor_resources: str = "CPU=1"
    """--engine=ray: what an actor takes of its node."""
    ray_port: int | None = None
    """--engine=ray: port of learner 0. Each other learner, and their rendezvous, use the next one.
    Default: free ones from 20000 to 32767."""
