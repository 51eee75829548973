"""Runs one node of a job that another engine has started: `impala train --join`.

The engine owns the machines. As in launched runs, a supervisor watches the processes of a node, and
lets learners find each other.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from impala_tf import config as configs
from impala_tf.cluster.node import state as files
from impala_tf.cluster.node.state import AgentError, ProcessSpec
from impala_tf.cluster.node.supervisor import NodeSupervisor
from impala_tf.cluster.plan import LAUNCH_ONLY, credentials_of, group_infos, sizes
from impala_tf.config import Config, ConfigError, Given, cores_here, user_commands
from impala_tf.config.addresses import host_port, split_host_port
from impala_tf.logdir import NoLocksError
from impala_tf.machine import certificates
from impala_tf.machine.supervision import LEARNER_RESTARTS

LEFT = os.EX_TEMPFAIL
"""Exit status of a node that was told to leave (SIGTERM) before the run was over."""
LOCK_WAIT_S = 120.0
"""Longer than a node of a restarted job takes to stop its previous learner
(`supervision.STOP_TIMEOUT_S`)."""
GROUP_HOSTS = "IMPALA_TF_GROUP_HOSTS"
"""Variable with the learners' names in a network of their own, if they have one."""
_PATIENCE_S = 600.0
_POLL_S = 0.5


def run_node(given: Given, config: Config) -> int:
    """Starts this node's processes and watches them until they are over.

    Args:
      given: the flags, with `logdir` and the role of this node.
      config: the config that follows from the flags.

    Returns:
      0 if all is done, LEFT, or 1 or 2 if a process failed or refused its input.

    Raises:
      ConfigError: see `supervisor_of`.
    """
    supervisor = supervisor_of(given.replace(**_sizes(given, config)), echo=True)
    status = supervisor.run_with_signals()
    return LEFT if supervisor.has_left and status == 0 else status


def supervisor_of(given: Given, echo: bool = False, workdir: str = "") -> NodeSupervisor:
    """Returns the supervisor of a node, ready to run. A signal ends the waiting at once.

    Args:
      given: the flags, with `logdir`, the role of this node, and what follows from the job's number
        of actors.
      echo: whether to print the output of the processes.
      workdir: the processes' current folder, absolute. '': this process's own.

    Raises:
      ConfigError: the logdir cannot be used, another process already has the role of this node, or
        learner 0 does not make the run's certificates.
    """
    logdir = Path(given["logdir"]).absolute()
    credentials = credentials_of(given)
    is_learner = given["job_name"] == "learner"
    learners = configs.split(given["learner_hosts"])
    processes = _processes(given, logdir, credentials, learners)
    _prepare(logdir, credentials, is_first=is_learner and given["task"] == 0)
    if is_learner:
        _await_name(learners[given["task"]])
    node = node_name(given)
    path = files.orders_path(logdir, node)
    with written(logdir):
        try:
            # Until it is claimed, the node's orders may belong to another process.
            alive = files.claim(logdir, node, LOCK_WAIT_S)
        except AgentError as error:
            raise ConfigError(
                f"--logdir={logdir}: {error}; stop it, or give another --logdir or --task"
            ) from None
        orders = files.new_orders(
            hashlib.sha256(given["learner_hosts"].encode()).hexdigest()[:16],
            node,
            logdir,
            processes,
            credentials=str(credentials),
            max_hours=given.cluster.max_hours,
            end_command=given.cluster.end_command,
            workdir=workdir,
        )
        files.write(path, orders)
        return NodeSupervisor(path, echo=echo, alive=alive)


def _prepare(logdir: Path, credentials: Path, is_first: bool) -> None:
    """Makes the run's folder and certificates; nodes other than learner 0's wait for the latter."""
    with written(logdir):
        files.processes_folder(logdir).mkdir(parents=True, exist_ok=True)
    if is_first:
        certificates.ensure(credentials)
        return
    until_s = time.monotonic() + _PATIENCE_S
    while not certificates.exist(credentials):
        if time.monotonic() > until_s:
            raise ConfigError(
                f"{credentials}: learner 0 has not made the run's certificates there within"
                f" {_PATIENCE_S / 60:.0f} min; --logdir must be on a disk that all nodes share"
            )
        time.sleep(_POLL_S)


@contextlib.contextmanager
def written(logdir: Path) -> Iterator[None]:
    """Turns failures to write to the logdir, or to lock a file there, into a ConfigError."""
    try:
        yield
    except NoLocksError as error:
        raise ConfigError(f"--logdir={logdir}: {error.strerror}") from None
    except OSError as error:
        raise ConfigError(f"--logdir={logdir}: cannot write there: {error.strerror}") from None


def _await_name(address: str) -> None:
    """Waits until this learner's name can be resolved; a pod's cannot in its first seconds."""
    host, _ = split_host_port(address)
    until_s = time.monotonic() + _PATIENCE_S
    while True:
        try:
            socket.getaddrinfo(host, None)
            return
        except socket.gaierror as error:
            if time.monotonic() > until_s:
                raise ConfigError(f"--learner_hosts={address}: {host}: {error.strerror}") from None
        time.sleep(_POLL_S)


def _processes(
    given: Given, logdir: Path, credentials: Path, learners: tuple[str, ...]
) -> list[ProcessSpec]:
    common = given.without(*LAUNCH_ONLY).replace(
        logdir=str(logdir), credentials=str(credentials), actor_hosts=""
    )
    if given["job_name"] == "actor":
        return [_process(common.replace(task=task)) for task in tasks(given)]
    # Each learner has a node of its own.
    number, addresses = given["task"], [split_host_port(address) for address in learners]
    names = [host for host, _ in addresses]
    if among := configs.split(os.environ.get(GROUP_HOSTS, "")):
        names = list(among)
        # This node is in two networks, and its name may mean either address.
        everywhere = host_port("0.0.0.0", addresses[number][1])
        listening = [*learners[:number], everywhere, *learners[number + 1 :]]
        common = common.replace(learner_hosts=",".join(listening))
    ports = [port for _, port in addresses]
    groups = group_infos(list(zip(names, ports, learners, strict=True)), given.cluster.min_learners)
    return [_process(common)._replace(group=groups[number], max_restarts=LEARNER_RESTARTS)]


def node_name(given: Given) -> str:
    """Returns the name of this node, which is in the names of its files."""
    return f"node-{given['job_name']}-{given['task']}"


def _process(flags: Given) -> ProcessSpec:
    name = f"{flags['job_name']}-{flags['task']}"
    return ProcessSpec(name, "", (*user_commands.program(), *configs.to_flags(flags)))


def _per_node(given: Given) -> int:
    # Where Slurm does not confine a job to its cores, those of other jobs are counted, too.
    own = os.environ.get("SLURM_CPUS_ON_NODE", "")
    cores = cores_here()
    return given["actors_per_node"] or (min(cores, int(own) or cores) if own.isdecimal() else cores)


def tasks(given: Given) -> range:
    """Returns the indices of this node's actors; if no flag says how many, one for each core."""
    actors = _per_node(given)
    node, nodes = given["task"], len(configs.split(given["actor_hosts"]))
    if not nodes:
        return range(node * actors, (node + 1) * actors)
    # The nodes take turns, so that indices differ even if nodes have different numbers of cores.
    return range(node, node + nodes * actors, nodes)


def _sizes(given: Given, config: Config) -> dict[str, int]:
    """Returns the flags that depend on the job's number of actors."""
    nodes = len(configs.split(given["actor_hosts"]))
    if not nodes:
        return {}
    actors = nodes * _per_node(given)
    envs = [config.process.envs_per_actor] * actors
    learners = len(configs.split(given["learner_hosts"]))
    flags = sizes(given.replace(algorithm=config.loss.algorithm), learners, envs)
    if "batch_size" in flags and not given["actors_per_node"]:
        raise ConfigError(
            f"--actors_per_node: {config.loss.algorithm} needs it here: a batch is an unroll of"
            " every environment, and this node does not know the cores of the others"
        )
    return flags
