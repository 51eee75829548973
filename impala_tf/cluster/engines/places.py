"""--join: one command on every node of a job. The environment says which node this is.

    SkyPilot      SKYPILOT_NODE_RANK, SKYPILOT_NODE_IPS
    Kubernetes    JOB_COMPLETION_INDEX, HOSTNAME; IMPALA_TF_SERVICE names the headless service
                  (with --job_name, only the first, for --task: learners and actors are two Jobs)
    Slurm         SLURMD_NODENAME and the job's node list; all lists of a heterogeneous job

The first one that is set counts. TF_CONFIG (see `config.tf_config`), or --job_name with --task and
--learner_hosts, takes precedence over all of them. The first nodes are learners, the others run
actors.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from typing import NamedTuple

from impala_tf.config.addresses import host_port
from impala_tf.config.errors import ConfigError
from impala_tf.config.flag_values import Given
from impala_tf.config.plug_ins import split

SERVICE = "IMPALA_TF_SERVICE"
_INDEX = "JOB_COMPLETION_INDEX"
_PORT = 8001
_NO_ENGINE = (
    "--join: no variable says which node this is (SLURMD_NODENAME, SKYPILOT_NODE_RANK,"
    " JOB_COMPLETION_INDEX or TF_CONFIG); give --job_name, --task and --learner_hosts"
)


class Place(NamedTuple):
    """A node's place in a job."""

    node: int
    """0 for the first node."""
    size: int | None
    """How many nodes there are. None: unknown."""
    hosts: tuple[str, ...]
    """The first nodes' host names: as many as the environment names."""
    variable: str
    """The environment variable that names the hosts."""
    port: int = _PORT
    """The learners' port."""
    learners: int = 1
    """How many nodes are learners, if no flag says so."""


def applied(given: Given, environment: Mapping[str, str]) -> Given:
    """Returns the given flags, and with --join also the flags of this node's role.

    --task is this node's index among the nodes of its role, and --actor_hosts names the nodes that
    run actors, if they are known. A job of a single node trains as without --join. Flags on the
    command line take precedence.

    Args:
      given: the flags of the command line, and those of TF_CONFIG.
      environment: the process's variables.

    Raises:
      ConfigError: the environment lacks what is needed.
    """
    if given["join"] and given["job_name"] and "task" not in given:
        return (
            given.replace(task=_number(environment, _INDEX)) if environment.get(_INDEX) else given
        )
    if not given["join"] or given["job_name"] or given["workers_csv_path"]:
        return given
    if given["mode"] != "train":
        raise ConfigError(f"--join: trains; leave it out with impala {given['mode']}")
    place = _place(environment)
    named = split(given["learner_hosts"])
    learners: int = given["num_learners"] or len(named) or place.learners
    if place.size == 1 and learners == 1:
        return given.without("join", "num_learners", "actors_per_node")
    _check(place, learners, given)
    is_learner = place.node < learners
    flags = {
        "job_name": "learner" if is_learner else "actor",
        "task": place.node if is_learner else place.node - learners,
        "learner_hosts": ",".join(host_port(host, place.port) for host in place.hosts[:learners]),
        # Only their number matters.
        "actor_hosts": ",".join(f"node-{each}" for each in range(learners, place.size or 0)),
    }
    return Given({**flags, **given.flags})


def _check(place: Place, learners: int, given: Given) -> None:
    if place.size is not None and learners >= place.size:
        raise ConfigError(
            f"--num_learners={learners}: {place.variable}: the job has {place.size} node(s); leave"
            " at least one for actors"
        )
    if learners > len(place.hosts) and not given["learner_hosts"]:
        raise ConfigError(
            f"--num_learners={learners}: {place.variable} names only {len(place.hosts)} of them;"
            " give --learner_hosts=host:port,..."
        )
    if place.size is None and not given["actors_per_node"]:
        raise ConfigError(
            f"--actors_per_node: needed here: {place.variable} does not say how many nodes there"
            " are, so actors cannot be numbered; give the same number on every node"
        )


def _place(environment: Mapping[str, str]) -> Place:
    for variable, find in (
        ("SKYPILOT_NODE_RANK", _skypilot),
        (_INDEX, _kubernetes),
        ("SLURM_JOB_ID", _slurm),
    ):
        if environment.get(variable):
            place = find(environment)
            if place.size is not None and not 0 <= place.node < place.size:
                raise ConfigError(f"{variable}={place.node}: the job has {place.size} node(s)")
            return place
    raise ConfigError(_NO_ENGINE)


def _skypilot(environment: Mapping[str, str]) -> Place:
    addresses = tuple(_text(environment, "SKYPILOT_NODE_IPS").split())
    rank = _number(environment, "SKYPILOT_NODE_RANK")
    return Place(rank, len(addresses), addresses, "SKYPILOT_NODE_IPS")


def _kubernetes(environment: Mapping[str, str]) -> Place:
    index = _number(environment, _INDEX)
    service, name = _text(environment, SERVICE), _text(environment, "HOSTNAME")
    # The pods of an indexed Job have the host names JOB-0, JOB-1, ...
    job = name.removesuffix(f"-{index}")
    if job == name:
        raise ConfigError(f"HOSTNAME={name}: must end in -{index}, as in an indexed Job")
    enough = tuple(f"{job}-{pod}.{service}" for pod in range(64))
    return Place(index, None, enough, _INDEX)


def _slurm(environment: Mapping[str, str]) -> Place:
    for variable, wanted in (("SLURM_STEP_ID", ""), ("SLURM_LOCALID", "0")):
        value = environment.get(variable, "")
        if not value or (wanted and value != wanted):
            raise ConfigError(
                f"{variable}={value}: --join starts all processes of a node itself; start it once a"
                " node, with srun --ntasks-per-node=1"
            )
    number = _number(environment, "SLURM_JOB_ID")
    components = range(int(environment.get("SLURM_HET_SIZE", "0")))
    lists = [f"SLURM_JOB_NODELIST_HET_GROUP_{n}" for n in components] or ["SLURM_JOB_NODELIST"]
    groups = [_slurm_hosts(_text(environment, variable), variable) for variable in lists]
    nodes = tuple(node for group in groups for node in group)
    name = _text(environment, "SLURMD_NODENAME")
    if nodes.count(name) != 1:
        raise ConfigError(
            f"SLURMD_NODENAME={name}: must be once in {' and '.join(lists)}; components of one job"
            " must not share a node (--exclusive)"
        )
    return Place(
        nodes.index(name),
        len(nodes),
        nodes,
        lists[0],
        port=20_000 + 2 * (number % 5000),  # jobs may share a node
        learners=len(groups[0]) if components else 1,
    )


def _text(environment: Mapping[str, str], variable: str) -> str:
    text = environment.get(variable, "").strip()
    if not text:
        raise ConfigError(f"{variable}: not set; --join needs it here")
    return text


def _number(environment: Mapping[str, str], variable: str) -> int:
    text = _text(environment, variable)
    if re.fullmatch(r"\d{1,9}", text) is None:
        raise ConfigError(f"{variable}={text}: must be a number, 0 or more")
    return int(text)


def _slurm_hosts(nodelist: str, variable: str) -> list[str]:
    """Returns the machines of a node list: 'n[01-03,7],gpu1' -> n01 n02 n03 n7 gpu1."""
    command = ["scontrol", "show", "hostnames", "--", nodelist]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"{variable}={nodelist}: scontrol cannot read it: {error}") from None
    if done.returncode:
        raise ConfigError(f"{variable}={nodelist}: {done.stderr.strip()}")
    return done.stdout.split()
