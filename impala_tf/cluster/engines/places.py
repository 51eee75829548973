"""--join: one command on every node of a job. The environment says which node this is.

    SkyPilot      SKYPILOT_NODE_RANK, SKYPILOT_NODE_IPS
    Slurm         SLURMD_NODENAME and the job's node list; all lists of a heterogeneous job

The first one that is set counts. TF_CONFIG (see `config.tf_config`), or --job_name with --task and
--learner_hosts, takes precedence over both. The first nodes are learners, the others run actors.
On Kubernetes, learners and actors are two indexed Jobs, with --job_name; JOB_COMPLETION_INDEX is
--task.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from typing import NamedTuple

from impala_tf.config.addresses import host_port
from impala_tf.config.errors import ConfigError
from impala_tf.config.flag_values import Given
from impala_tf.config.plug_ins import split

_INDEX = "JOB_COMPLETION_INDEX"
_PORT = 8001


class Place(NamedTuple):
    """A node's place in a job."""

    node: int
    """0 for the first node."""
    hosts: tuple[str, ...]
    """The host names of all nodes."""
    port: int = _PORT
    """The learners' port."""
    learners: int = 1
    """How many nodes are learners, if no flag says so."""


def applied(given: Given, environment: Mapping[str, str]) -> Given:
    """Returns the given flags, and with --join also the flags of this node's role.

    --task is this node's index among the nodes of its role, and --actor_hosts names the nodes that
    run actors. A job of a single node trains as without --join. Flags on the command line take
    precedence.

    Args:
      given: the flags of the command line, and those of TF_CONFIG.
      environment: the process's variables.

    Raises:
      ConfigError: the environment lacks what is needed.
    """
    if given["join"] and given["job_name"] and "task" not in given and environment.get(_INDEX):
        return given.replace(task=int(environment[_INDEX]))
    if not given["join"] or given["job_name"] or given["workers_csv_path"]:
        return given
    if given["mode"] != "train":
        raise ConfigError(f"--join: trains; leave it out with impala {given['mode']}")
    place = _place(environment)
    size = len(place.hosts)
    learners: int = given["num_learners"] or len(split(given["learner_hosts"])) or place.learners
    if size == 1 and learners == 1:
        return given.without("join", "num_learners", "actors_per_node")
    if learners >= size:
        raise ConfigError(
            f"--num_learners={learners}: the job has {size} node(s); leave at least one for actors"
        )
    is_learner = place.node < learners
    flags = {
        "job_name": "learner" if is_learner else "actor",
        "task": place.node if is_learner else place.node - learners,
        "learner_hosts": ",".join(host_port(host, place.port) for host in place.hosts[:learners]),
        "actor_hosts": ",".join(place.hosts[learners:]),  # only their number matters
    }
    return Given({**flags, **given.flags})


def _place(environment: Mapping[str, str]) -> Place:
    if environment.get("SKYPILOT_NODE_RANK"):
        addresses = _text(environment, "SKYPILOT_NODE_IPS").split()
        return Place(int(environment["SKYPILOT_NODE_RANK"]), tuple(addresses))
    if environment.get("SLURM_JOB_ID"):
        return _slurm(environment)
    raise ConfigError(
        "--join: no variable says which node this is (SLURMD_NODENAME, SKYPILOT_NODE_RANK or"
        " TF_CONFIG); give --job_name, --task and --learner_hosts"
    )


def _slurm(environment: Mapping[str, str]) -> Place:
    if not environment.get("SLURM_STEP_ID") or environment.get("SLURM_LOCALID", "0") != "0":
        raise ConfigError(
            "--join: starts all processes of a node itself; start it once a node, with srun"
            " --ntasks-per-node=1"
        )
    components = range(int(environment.get("SLURM_HET_SIZE", "0")))
    lists = [f"SLURM_JOB_NODELIST_HET_GROUP_{n}" for n in components] or ["SLURM_JOB_NODELIST"]
    groups = [_slurm_hosts(_text(environment, variable)) for variable in lists]
    nodes = tuple(node for group in groups for node in group)
    name = _text(environment, "SLURMD_NODENAME")
    if nodes.count(name) != 1:
        raise ConfigError(
            f"SLURMD_NODENAME={name}: must be once in {' and '.join(lists)}; components of one job"
            " must not share a node (--exclusive)"
        )
    return Place(
        nodes.index(name),
        nodes,
        port=20_000 + 2 * (int(environment["SLURM_JOB_ID"]) % 5000),  # jobs may share a node
        learners=len(groups[0]) if components else 1,
    )


def _text(environment: Mapping[str, str], variable: str) -> str:
    text = environment.get(variable, "").strip()
    if not text:
        raise ConfigError(f"{variable}: not set; --join needs it here")
    return text


def _slurm_hosts(nodelist: str) -> list[str]:
    """Returns the machines of a node list: 'n[01-03,7],gpu1' -> n01 n02 n03 n7 gpu1."""
    command = ["scontrol", "show", "hostnames", "--", nodelist]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split()
