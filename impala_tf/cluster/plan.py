"""Turns the rows of a workers CSV into a plan: what runs where, and with which flags.

A plan is a value; making it starts nothing, and opens no connection.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, NamedTuple

from impala_tf import config as configs
from impala_tf.cluster import requirements
from impala_tf.cluster.inventory import (
    Row,
    Secret,
    is_forwarded,
    is_loopback,
    read_workers,
)
from impala_tf.cluster.node.state import GroupInfo, ProcessSpec
from impala_tf.config import ConfigError, Given, user_commands
from impala_tf.config.addresses import host_port, split_host_port
from impala_tf.config.flags import LAUNCH
from impala_tf.machine import supervision
from impala_tf.machine.local_addresses import is_here
from impala_tf.printable import columns

REMOTE_WORKDIR = "impala_tf"
"""Folder of the project on other machines if the CSV names none; relative to the home folder."""
REMOTE_PYTHON = ".venv/bin/python"
"""Interpreter on other machines if the CSV names none; relative to the workdir."""
_LOOKED_UP_AT_ONCE = 64


class NodeSpec(NamedTuple):
    """A machine, and where the project, its interpreter and the run are on it."""

    name: str
    """The name in messages: that of `Row.machine`, or 'this machine'."""
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
    code: str = ""
    """Folder of the run's code, relative to the workdir; '' for the workdir itself."""

    @property
    def id(self) -> str:
        """Such as node-10.0.0.3; it is in the names of the machine's files."""
        return "node-here" if self.is_local else f"node-{self.name}"

    def ssh_options(self) -> list[str]:
        """Returns the options of the commands `ssh` and `ssh -G` that the CSV asks for."""
        port = ["-p", str(self.ssh_port)] if self.ssh_port else []
        user = ["-l", self.ssh_username] if self.ssh_username else []
        return [*port, *user, *(["-i", self.key_filename] if self.key_filename else [])]


class Plan(NamedTuple):
    """Everything that a launch needs, except passwords."""

    tmux_sess: str
    nodes: tuple[NodeSpec, ...]
    processes: tuple[ProcessSpec, ...]
    learner_hosts: tuple[str, ...]
    """host:port of learner K at index K."""

    def on(self, node: NodeSpec) -> list[ProcessSpec]:
        """Returns the processes that run on `node`, learners first."""
        return [process for process in self.processes if process.node == node.name]

    def address_of(self, learner: ProcessSpec) -> tuple[str, int]:
        """Returns the host, without brackets, and the port where a learner listens."""
        return split_host_port(self.learner_hosts[int(learner.name.removeprefix("learner-"))])

    def served_by(self, node: NodeSpec) -> list[tuple[str, int]]:
        """Returns the (host, port) where a machine's learners listen; port 0 is any port."""
        learners = [process for process in self.on(node) if process.is_learner]
        groups = [learner.group for learner in learners if learner.group]
        meet = [(each.hosts[0], each.rendezvous_port) for each in groups if each.number == 0]
        spread = [(each.hosts[each.number], 0) for each in groups if each.is_spread]
        return list(dict.fromkeys([*map(self.address_of, learners), *meet, *spread]))

    def reached_from(self, node: NodeSpec) -> list[tuple[str, int]]:
        """Returns the (host, port) of learners to which a machine's processes connect."""
        addresses = [split_host_port(text) for text in self.learner_hosts]
        found = []
        for process in self.on(node):
            number = int(process.name.partition("-")[2])
            if not process.is_learner:
                found.append(addresses[number % len(addresses)])
            elif group := process.group:
                found.append((group.hosts[0], group.rendezvous_port))
                found += [(host, 0) for host in group.hosts if group.is_spread]
        return list(dict.fromkeys(found))

    def nodes_of(self, names: Collection[str]) -> list[NodeSpec]:
        """Returns the machines that run any of these processes."""
        of_them = {process.node for process in self.processes if process.name in names}
        return [node for node in self.nodes if node.name in of_them]

    def role(self, node: NodeSpec) -> Literal["actor", "learner"]:
        """Returns which packages a machine needs: a learner's if it runs one, else an actor's."""
        return "learner" if any(process.is_learner for process in self.on(node)) else "actor"

    def memory_gib(self, node: NodeSpec) -> float:
        """Returns the least memory that the processes of a machine need."""
        return sum(map(_memory_gib, self.on(node)))

    def processes_called(self, target: str) -> set[str]:
        """Returns the names of the processes that `target` means: one, or all of a machine.

        Raises:
          ConfigError: there is no such process or machine.
        """
        hosts = [node.name for node in self.nodes if target in (node.name, node.ssh_host)]
        if names := {p.name for p in self.processes if p.name == target or p.node in hosts}:
            return names
        known = ", ".join(spans(process.name for process in self.processes))
        machines = ", ".join(node.name for node in self.nodes)
        raise ConfigError(
            f"{target}: no such process or machine; this run has {known} on {machines}"
        )

    def machine_called(self, name: str) -> NodeSpec:
        """Returns the machine called `name`. Raises ConfigError if there is none, or several."""
        nodes = [node for node in self.nodes if node.name == name]
        nodes = nodes or [node for node in self.nodes if node.ssh_host == name]
        if len(nodes) != 1:
            names = ", ".join(node.name for node in nodes or self.nodes)
            raise ConfigError(f"{name}: not the name of one machine; this run has {names}")
        return nodes[0]


def plan_of(
    given: Given, python: str, logdir_here: Path | None = None
) -> tuple[Plan, dict[str, Secret]]:
    """Reads the workers CSV; returns the plan of a launch, and {name of the node: password}.

    Raises ConfigError for the problems of the CSV; the rest is as in `make_plan`.
    """
    if not given.cluster.workers_csv_path:
        raise ConfigError("--workers_csv_path: name the CSV of the machines")
    rows = read_workers(Path(given.cluster.workers_csv_path))
    plan = make_plan(given, rows, python, logdir_here)
    return plan, passwords(rows)


def make_plan(
    given: Given, rows: Sequence[Row], python: str, logdir_here: Path | None = None
) -> Plan:
    """Returns which process runs on which machine, with which flags.

    Each process gets the flags of the launch, except those that only the launcher uses, and its own
    job, task and logdir. Actor K sends to learner K % learners.

    Args:
      given: the flags of the launch, with `workers_csv_path` and `logdir`.
      rows: the rows from `inventory.read_workers`.
      python: the interpreter for rows of this machine that name none.
      logdir_here: the logdir on this machine. Default: --logdir, relative to the current folder;
        on other machines, it is relative to the workdir.

    Raises:
      ConfigError: the rows contradict each other, or the flags.
    """
    logdir = str(logdir_here or Path(given["logdir"]).resolve())
    workdir = str(requirements.ROOT if user_commands.IS_CHECKOUT else Path.cwd())
    here = NodeSpec("this machine", "", True, workdir, python, logdir)
    nodes = _nodes(given, rows, here)
    learners = [row for row in rows if row.job == "learner"]
    actors = [row for row in rows if row.job == "actor"]
    if problems := _contradictions(given, learners, actors, nodes):
        raise ConfigError(problems)
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
            environment=_environment(given, row),
            max_restarts=supervision.LEARNER_RESTARTS if job == "learner" else None,
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


def _contradictions(
    given: Given, learners: Sequence[Row], actors: Sequence[Row], nodes: Mapping[str, NodeSpec]
) -> list[str]:
    """Returns a line for each learner that has another one's port, or is out of reach."""
    csv = given.cluster.workers_csv_path
    lines = [
        f"--{flag}={fewest}: {csv} has only {len(rows)}"
        for flag, rows in (("min_learners", learners), ("min_actors", actors))
        if (fewest := getattr(given.cluster, flag)) is not None and fewest > len(rows)
    ]
    used: dict[tuple[str, int | None], Row] = {}
    for row in learners:
        here = nodes[row.machine]
        first = used.setdefault((here.name, row.tf_port), row)
        if first is not row:
            lines.append(
                f"{csv}:{row.line}: tf_port: {row.tf_port} is that of the learner in line"
                f" {first.line}, on the same machine"
            )
        away = [
            each
            for each in (*learners, *actors)
            if nodes[each.machine] != here and not is_loopback(each.ip)
        ]
        if is_loopback(row.ip) and away:
            lines.append(
                f"{csv}:{row.line}: ip: on {away[0].ip} (line {away[0].line}), {row.ip} is another"
                " machine; give the address at which the others reach this learner"
            )
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
    """
    if len(learners) == 1:
        return [None]
    hosts, _, nodes = zip(*learners, strict=True)
    # Where they meet: one above the highest port of those on learner 0's machine.
    meet_at = 1 + max(port for _, port, node in learners if node == nodes[0])
    return [GroupInfo(n, hosts, nodes, meet_at, min_learners) for n in range(len(learners))]


def credentials_of(given: Given) -> Path:
    """Returns the folder of a run's certificates: --credentials, or one in its logdir."""
    return Path(given["credentials"] or Path(given["logdir"]) / "credentials").absolute()


def passwords(rows: Iterable[Row]) -> dict[str, Secret]:
    """Returns {name of the node: password} for the machines that have one."""
    return {row.machine: row.ssh_password for row in rows if row.ssh_password is not None}


def _nodes(given: Given, rows: Sequence[Row], here: NodeSpec) -> dict[str, NodeSpec]:
    """Returns {name of a row's machine: node}. All names of this machine have the same node."""
    # In parallel: looking up a name may take seconds.
    hosts = {row.machine: row.ssh_host or row.ip for row in rows if not is_forwarded(row)}
    with ThreadPoolExecutor(min(len(hosts), _LOOKED_UP_AT_ONCE) or 1) as pool:
        local = dict(zip(hosts, pool.map(is_here, hosts.values()), strict=True))
    nodes: dict[str, NodeSpec] = {}
    for row in rows:
        if row.machine in nodes:
            continue
        if local.get(row.machine):
            workdir = str(Path(here.workdir, Path(row.workdir or "").expanduser()))
            nodes[row.machine] = here._replace(workdir=workdir, python=row.python or here.python)
            continue
        key = row.key_filename and str(Path(row.key_filename).expanduser().absolute())
        nodes[row.machine] = NodeSpec(
            name=row.machine,
            address=row.ip,
            is_local=False,
            workdir=(row.workdir or REMOTE_WORKDIR).removeprefix("~/"),
            python=row.python or REMOTE_PYTHON,
            logdir=given["logdir"],
            ssh_host=row.ssh_host or row.ip,
            ssh_port=row.ssh_port,
            ssh_username=row.ssh_username,
            key_filename=key,
            host_key=row.host_key,
        )
    if len({node for node in nodes.values() if node.is_local}) > 1:
        raise ConfigError(
            f"--workers_csv_path={given.cluster.workers_csv_path}: rows on this machine differ in"
            " python or workdir; give all of them the same"
        )
    return nodes


LAUNCH_ONLY = configs.flags_of(LAUNCH)
"""Flags of what starts processes: these get the defaults."""


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


def _environment(given: Given, row: Row) -> dict[str, str]:
    variables = dict(text.split("=", 1) for text in given.cluster.env)
    if row.cuda_visible_devices is not None:
        variables["CUDA_VISIBLE_DEVICES"] = row.cuda_visible_devices
    return variables


# --- the plan as text ---


def as_text(plan: Plan) -> str:
    """Returns a row per machine, and the sums, in a fixed width."""
    rows = [("machine", "login", "runs", "environments", "memory", "listens on")]
    gloo = "any port (Gloo, from the other learners)"
    for node in plan.nodes:
        processes, served = plan.on(node), plan.served_by(node)
        user = f"{node.ssh_username}@" if node.ssh_username else ""
        port = f", port {node.ssh_port}" if node.ssh_port else ""
        rows.append(
            (
                node.name,
                "-" if node.is_local else f"{user}{node.ssh_host}{port}",
                ", ".join(spans(process.name for process in processes)),
                _environments(processes),
                f"{plan.memory_gib(node):.2g} GiB or more",
                ", ".join(host_port(*each) if each[1] else gloo for each in served) or "-",
            )
        )
    learners = len(plan.learner_hosts)
    total = (
        f"{learners} learner(s) and {len(plan.processes) - learners} actor(s) on"
        f" {len(plan.nodes)} machine(s), {_environments(plan.processes)} environments"
    )
    return columns(rows) + f"{total}\n"


def warnings(plan: Plan) -> list[str]:
    """Returns a line for each thing in a plan that is probably a mistake."""
    learners, lines = plan.processes[: len(plan.learner_hosts)], []
    if idle := learners[len(plan.processes) - len(learners) :]:
        names = ", ".join(spans(learner.name for learner in idle))
        lines.append(f"warning: fewer actors than learners: {names} would train nothing")
    for learner in learners if len(plan.nodes) > 1 else ():
        if is_loopback(host := plan.address_of(learner)[0]):
            lines.append(f"warning: {learner.name} is at {host}, out of reach for other machines")
    return lines


def spans(names: Iterable[str]) -> list[str]:
    """Returns names in order, with actor-3, actor-4, actor-5 as 'actor-3 to actor-5'."""
    spans: list[list[str]] = []
    for name in names:
        job, _, number = name.partition("-")
        if spans and spans[-1][-1] == f"{job}-{int(number) - 1}":
            spans[-1] = [spans[-1][0], name]
        else:
            spans.append([name])
    return [" to ".join(span) for span in spans]


def _environments(processes: Iterable[ProcessSpec]) -> str:
    """Returns the number of environments, or '?' if an actor uses the default."""
    counts = [_flag(each, "envs_per_actor") for each in processes if not each.is_learner]
    return "?" if None in counts else f"{sum(int(count or 0) for count in counts):,}"


def _memory_gib(process: ProcessSpec) -> float:
    if process.is_learner:
        return requirements.LEARNER_GIB
    # A user's own algorithm is not imported here; like most, its actors need no TensorFlow.
    name = _flag(process, "algorithm")
    needs_tensorflow = name in configs.ALGORITHMS and configs.algorithm(name).acting == "tensorflow"
    return requirements.TENSORFLOW_ACTOR_GIB if needs_tensorflow else requirements.ACTOR_GIB


def _flag(process: ProcessSpec, name: str) -> str | None:
    values = [w.partition("=")[2] for w in process.arguments if w.startswith(f"--{name}=")]
    return values[-1] if values else None
