"""Turns the rows of a workers CSV into a plan: what runs where, and with which flags.

A plan is a value; making it has no side effects.
"""

from __future__ import annotations

import dataclasses
import getpass
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, NamedTuple

from impala_tf import config as configs
from impala_tf.config import ConfigError, Given, user_commands
from impala_tf.config.addresses import host_port, split_host_port
from impala_tf.frontend import requirements
from impala_tf.frontend.inventory import SSH_PORT, Machine, Row, Secret, is_forwarded
from impala_tf.frontend.node.state import GroupInfo, ProcessSpec

REMOTE_WORKDIR = "impala_tf"
"""Folder of the project on other machines if the CSV names none; relative to the home folder."""
REMOTE_PYTHON = ".venv/bin/python"
"""Interpreter on other machines if the CSV names none; relative to the workdir."""
_LOOKED_UP_AT_ONCE = 64


class NodeSpec(NamedTuple):
    """A machine, and where the project, its interpreter and the run are on it."""

    name: str
    """The name in messages: the address, with user and port if the address alone is ambiguous."""
    address: str
    """The address at which other machines reach it; '' for this machine."""
    is_local: bool
    workdir: str
    """Absolute, or relative to the home folder on that machine."""
    python: str
    """A path (absolute, or relative to the workdir or, after ~/, to the home folder), or the name
    of a command."""
    logdir: str
    """Absolute, or relative to the workdir."""
    ssh_host: str = ""
    """Where to log in; may be an alias of ~/.ssh/config."""
    ssh_port: int | None = None
    """None: the port in ~/.ssh/config, or 22."""
    ssh_username: str | None = None
    """None: the user in ~/.ssh/config, or the user who launches."""
    key_filename: str | None = None
    host_key: str | None = None
    """The only host key to accept: 'TYPE BASE64' or 'SHA256:...'."""
    csv_line: int = 0
    """The line of the first row that names the machine."""
    code: str = ""
    """Folder of the run's code, relative to the workdir; '' for the workdir itself."""

    @property
    def id(self) -> str:
        """Such as node-10.0.0.3; it is in the names of the machine's files."""
        return "node-here" if self.is_local else f"node-{self.name}"

    @property
    def login(self) -> Machine:
        """Where to log in, as in `Row.machine`; for this machine, equal to no row's."""
        return self.ssh_host, self.ssh_port or SSH_PORT, self.ssh_username


class Plan(NamedTuple):
    """Everything that a launch needs, except passwords."""

    tmux_sess: str
    nodes: tuple[NodeSpec, ...]
    processes: tuple[ProcessSpec, ...]
    learner_hosts: tuple[str, ...]
    """host:port of learner K at index K."""

    def node(self, name: str) -> NodeSpec:
        """Returns the node called `name`."""
        return next(node for node in self.nodes if node.name == name)

    def on(self, node: NodeSpec) -> list[ProcessSpec]:
        """Returns the processes that run on `node`, learners first."""
        return [process for process in self.processes if process.node == node.name]

    def address_of(self, learner: ProcessSpec) -> tuple[str, int]:
        """Returns the host, without brackets, and the port where a learner listens."""
        return split_host_port(self.learner_hosts[int(learner.name.removeprefix("learner-"))])

    def process(self, name: str) -> ProcessSpec:
        """Returns the process called `name`. Raises ConfigError if there is none."""
        for process in self.processes:
            if process.name == name:
                return process
        names = ", ".join(process.name for process in self.processes)
        raise ConfigError(f"{name}: no such process; this run has {names}")

    def nodes_of(self, names: Collection[str]) -> list[NodeSpec]:
        """Returns the machines that run any of these processes."""
        return [
            node for node in self.nodes if any(process.name in names for process in self.on(node))
        ]

    def role(self, node: NodeSpec) -> Literal["actor", "learner"]:
        """Returns which packages a machine needs: a learner's if it runs one, else an actor's."""
        return "learner" if any(process.is_learner for process in self.on(node)) else "actor"

    def memory_gib(self, node: NodeSpec) -> float:
        """Returns the least memory that the processes of a machine need."""
        return sum(map(_memory_gib, self.on(node)))


@dataclasses.dataclass(frozen=True)
class LocalNode:
    """This machine, which some rows may name."""

    workdir: Path
    python: str
    logdir: Path
    is_here: Callable[[str], bool]
    """Tells whether an address is one of this machine's."""


def _memory_gib(process: ProcessSpec) -> float:
    if process.is_learner:
        return requirements.LEARNER_GIB
    # A user's own algorithm is not imported here; like most, its actors need no TensorFlow.
    names = (word.removeprefix("--algorithm=") for word in process.arguments)
    known = [configs.algorithm(name) for name in names if name in configs.ALGORITHMS]
    needs_tensorflow = any(algorithm.acting == "tensorflow" for algorithm in known)
    return requirements.TENSORFLOW_ACTOR_GIB if needs_tensorflow else requirements.ACTOR_GIB


def make_plan(
    given: Given, rows: list[Row], local: LocalNode, known: Iterable[NodeSpec] = ()
) -> Plan:
    """Returns which process runs on which machine, with which flags.

    Actors are assigned to learners round robin: actor K to learner K % learners. Each process gets
    the flags of the launch, except those that only the launcher uses, and its own job, task and
    logdir.

    Args:
      given: the flags of the launch, with `logdir`.
      rows: the rows from `inventory.read_workers`.
      local: the interpreter and folders for rows that name this machine. A relative --logdir is
        relative to the current folder here, and to the workdir on other machines.
      known: machines of the run, which keep their names.

    Raises:
      ConfigError: the rows of this machine disagree about its interpreter or folder, or the flags
        and the rows contradict each other.
    """
    nodes = _nodes(given, rows, local, {node.login: node.name for node in known})
    names = {machine: node.name for machine, node in nodes.items()}
    learners = [row for row in rows if row.job == "learner"]
    if lines := [*_shared_ports(given, learners, names), *_counts(given, rows)]:
        raise ConfigError(lines)
    actors = [row for row in rows if row.job == "actor"]
    learner_hosts = tuple(host_port(row.ip, row.tf_port or 0) for row in learners)
    # The number of actors, not their addresses: for a hundred machines, each of a hundred machines
    # would get a long list.
    envs = [given["envs_per_actor"] if row.envs is None else row.envs for row in actors]
    shared = {"learner_hosts": ",".join(learner_hosts), **sizes(given, len(learners), envs)}
    groups = group_infos(
        [(row.ip, row.tf_port or 0, nodes[row.machine].name) for row in learners],
        given.cluster.min_learners,
    )
    processes = [
        ProcessSpec(
            name=f"{job}-{task}",
            node=nodes[row.machine].name,
            arguments=_arguments(given, shared, task, nodes[row.machine], row),
            environment={
                **dict(text.split("=", 1) for text in given.cluster.env),
                **_environment(row),
            },
            max_restarts=given.cluster.max_restarts if job == "learner" else None,
            group=groups[task] if job == "learner" else None,
        )
        for job, members in (("learner", learners), ("actor", actors))
        for task, row in enumerate(members)
    ]
    return Plan(
        tmux_sess=given.cluster.tmux_sess,
        nodes=tuple(dict.fromkeys(nodes.values())),
        processes=tuple(processes),
        learner_hosts=learner_hosts,
    )


def _shared_ports(given: Given, learners: Sequence[Row], names: Mapping[Machine, str]) -> list[str]:
    """Returns a line for each learner whose port another one has, under any of their addresses.

    Args:
      given: the flags of the launch, with `workers_csv_path`.
      learners: their rows.
      names: {login: name of the machine}; logins of this machine share a name.
    """
    used: dict[tuple[str, int | None], Row] = {}
    return [
        f"{given.cluster.workers_csv_path}:{row.line}: tf_port: {row.tf_port} is already used by"
        f" the learner in line {first.line}, which is on the same machine"
        for row in learners
        if (first := used.setdefault((names[row.machine], row.tf_port), row)) is not row
    ]


def _counts(given: Given, rows: Sequence[Row]) -> list[str]:
    lines = []
    for flag, job in (("min_learners", "learner"), ("min_actors", "actor")):
        fewest = getattr(given.cluster, flag)
        count = sum(row.job == job for row in rows)
        if fewest is not None and fewest > count:
            csv = given.cluster.workers_csv_path
            lines.append(f"--{flag}={fewest}: {csv} has {count} {job}(s); give at most {count}")
    return lines


def sizes(given: Given, learners: int, envs: Sequence[int]) -> dict[str, int]:
    """Returns the flags of all processes that follow from the number of actors.

    Args:
      given: the flags of the run.
      learners: the number of learners.
      envs: the number of environments of each actor.

    Returns:
      num_actors. Also batch_size, if the actors wait for updates and it was not given: as many
      unrolls as the learner with the fewest gets if each of its actors sends once.
    """
    flags = {"num_actors": len(envs)}
    waits = configs.actors_wait(given["algorithm"], given["synchronization"])
    if waits and given["batch_size"] is None:
        flags["batch_size"] = max(1, min(sum(envs[rank::learners]) for rank in range(learners)))
    return flags


def group_infos(
    learners: Sequence[tuple[str, int, str]], min_learners: int | None = None
) -> list[GroupInfo | None]:
    """Returns each learner's place in the group; [None] for a single learner.

    Args:
      learners: for each, the address for other learners, the port for its actors, and any name of
        its machine.
      min_learners: the value of --min_learners.

    Raises:
      ConfigError: the learners have no port to meet at, one above the highest one of those on
        learner 0's machine.
    """
    if len(learners) == 1:
        return [None]
    hosts, nodes = (
        tuple(learner[0] for learner in learners),
        tuple(learner[2] for learner in learners),
    )
    meet_at = 1 + max(port for _, port, node in learners if node == nodes[0])
    if meet_at > 65535:
        raise ConfigError(
            "tf_port: 65535 is too high: several learners meet at the next port; give a lower one"
        )
    return [GroupInfo(n, hosts, nodes, meet_at, min_learners) for n in range(len(learners))]


def credentials_of(given: Given) -> Path:
    """Returns the folder of a run's certificates: --credentials, or one in its logdir."""
    return Path(given["credentials"] or Path(given["logdir"]) / "credentials").absolute()


def passwords(plan: Plan, rows: list[Row]) -> dict[str, Secret]:
    """Returns {name of the node: password} for the machines that have one."""
    return {
        node.name: row.ssh_password
        for node in plan.nodes
        for row in rows
        if row.ssh_password is not None and node.login == row.machine
    }


def _nodes(
    given: Given, rows: list[Row], local: LocalNode, names: Mapping[Machine, str]
) -> dict[Machine, NodeSpec]:
    nodes: dict[Machine, NodeSpec] = {}
    local_logins = _here(rows, local)
    for row in rows:
        if row.machine in nodes:
            continue
        same_host = {other.machine for other in rows if other.machine[0] == row.machine[0]}
        if row.machine in local_logins:
            # All rows of this machine are one node, whatever addresses and users they name.
            workdir = local.workdir / _expanded(row.workdir or "")
            python = row.python or local.python
            earlier = next((node for node in nodes.values() if node.is_local), None)
            nodes[row.machine] = NodeSpec(
                "this machine", "", True, str(workdir), python, str(local.logdir),
                csv_line=earlier.csv_line if earlier else row.line
            )  # fmt: skip
            continue
        user, host = _user(row, given), row.ssh_host or row.ip
        name = (
            host if len(same_host) == 1 else f"{user}@{host_port(host, row.ssh_port or SSH_PORT)}"
        )
        nodes[row.machine] = NodeSpec(
            name=names.get(row.machine, name),
            address=row.ip,
            is_local=False,
            workdir=(row.workdir or REMOTE_WORKDIR).removeprefix("~/"),
            python=row.python or REMOTE_PYTHON,
            logdir=given["logdir"],
            ssh_host=host,
            ssh_port=row.ssh_port,
            ssh_username=row.ssh_username,
            key_filename=_absolute(row.key_filename),
            host_key=row.host_key,
            csv_line=row.line,
        )
    _refuse_one_name(nodes.values(), given)
    if len({node for node in nodes.values() if node.is_local}) > 1:
        raise ConfigError(
            f"--workers_csv_path={given.cluster.workers_csv_path}: rows on this machine differ in "
            "python or workdir; give all of them the same"
        )
    return nodes


def _user(row: Row, given: Given) -> str:
    """Returns the name to log in with. Raises ConfigError if neither row nor system has one."""
    try:
        return row.ssh_username or getpass.getuser()
    except (KeyError, OSError) as error:
        raise ConfigError(
            f"{given.cluster.workers_csv_path}:{row.line}: ssh_username: empty, and the user id"
            f" {os.getuid()} has no name here: give the name to log in with"
        ) from error


def _refuse_one_name(nodes: Iterable[NodeSpec], given: Given) -> None:
    """Raises ConfigError if two logins get one name, because only one row names the user."""
    named: dict[str, NodeSpec] = {}
    for node in nodes:
        other = node if node.is_local else named.setdefault(node.name, node)
        if other != node:
            raise ConfigError(
                f"{given.cluster.workers_csv_path}:{node.csv_line}: ssh_username: differs from line"
                f" {other.csv_line}, which also means {node.name}: give both rows the same"
            )


def _absolute(path: str | None) -> str | None:
    """Returns an absolute path: later commands for the run may be given in another folder."""
    return None if path is None else str(_expanded(path).absolute())


def _expanded(path: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ConfigError(f"{path}: no home folder here; write the path in full") from error


def _here(rows: Iterable[Row], local: LocalNode) -> set[Machine]:
    """Returns the logins of this machine. Looks up names in parallel: one may take seconds."""
    machines = dict.fromkeys(row.machine for row in rows if not is_forwarded(row))
    hosts = list(dict.fromkeys(host for host, *_ in machines))
    with ThreadPoolExecutor(min(len(hosts), _LOOKED_UP_AT_ONCE) or 1) as pool:
        is_here = dict(zip(hosts, pool.map(local.is_here, hosts), strict=True))
    return {machine for machine in machines if is_here[machine[0]]}


# Flags that only the launcher uses; the run's processes get the defaults.
LAUNCH_ONLY = ("workers_csv_path", "tmux_sess", "detach", "fresh", "accept_new_host_keys",
               "max_restarts", "credentials", "min_actors", "min_learners",
               "max_hours", "end_command", "env", "secret", "dry_run", "join",
               "num_learners", "actors_per_node",
               *configs.ENGINE_FLAGS)  # fmt: skip


def _arguments(
    given: Given, shared: Mapping[str, Any], task: int, node: NodeSpec, row: Row
) -> tuple[str, ...]:
    own: dict[str, Any] = {**shared, "job_name": row.job, "task": task, "logdir": node.logdir}
    if row.envs is not None:
        own["envs_per_actor"] = row.envs
    if node.is_local and given["start_from"]:  # the processes' folder is that of the code
        own["start_from"] = str(Path(given["start_from"]).expanduser().absolute())
    is_package = node.is_local and not user_commands.IS_CHECKOUT  # it has no script
    script = user_commands.program() if is_package else (user_commands.SCRIPT,)
    return (*script, *configs.to_flags(given.without(*LAUNCH_ONLY).replace(**own)))


def _environment(row: Row) -> dict[str, str]:
    if row.cuda_visible_devices is None:
        return {}
    return {"CUDA_VISIBLE_DEVICES": row.cuda_visible_devices}
