"""Turns the rows of a workers CSV into a plan: what runs where, with which flags.

Has no side effects: a plan is a value.
"""

from __future__ import annotations

import dataclasses
import getpass
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from frontend.workers import Row, Secret
from impala_tf import config as configs
from impala_tf.config import Config, ConfigError

REMOTE_WORKDIR = "impala_tf"
"""Folder of the project on other machines if the CSV names none; relative to the home folder."""
REMOTE_PYTHON = ".venv/bin/python"
"""Interpreter on other machines if the CSV names none; relative to the workdir."""


@dataclasses.dataclass(frozen=True)
class Place:
    """A machine, and where the project, its interpreter and the run are on it."""

    name: str
    """As shown to people: the address, with user and port if the address alone is ambiguous."""
    ip: str
    is_local: bool
    workdir: str
    """Absolute, or relative to the home folder on that machine."""
    python: str
    """A path (absolute, or relative to the workdir), or the name of a command."""
    logdir: str
    """Absolute, or relative to the workdir."""
    ssh_port: int = 22
    ssh_username: str = ""
    key_filename: str | None = None


@dataclasses.dataclass(frozen=True)
class Group:
    """A learner's position in the group of learners, in the terms of Horovod's Gloo controller."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    host: str
    """This learner's address, as the others reach it."""
    rendezvous_host: str
    rendezvous_port: int


@dataclasses.dataclass(frozen=True)
class Process:
    """A process of the run. A supervisor on the same machine runs it."""

    name: str
    """learner-0, actor-2: names the window and the log; `frontend logs` takes it."""
    place: str
    """Name of its Place."""
    arguments: tuple[str, ...]
    """What follows the interpreter on the command line."""
    environment: tuple[tuple[str, str], ...] = ()
    max_restarts: int | None = None
    """None: no limit."""
    group: Group | None = None


@dataclasses.dataclass(frozen=True)
class Plan:
    """Everything that a launch needs, except passwords."""

    tmux_sess: str
    places: tuple[Place, ...]
    processes: tuple[Process, ...]
    learner_hosts: tuple[str, ...]
    """host:port of learner K at index K."""

    def place(self, name: str) -> Place:
        """Returns the Place called `name`."""
        return next(place for place in self.places if place.name == name)

    def on(self, place: Place) -> list[Process]:
        """Returns the processes that run at `place`, learners first."""
        return [process for process in self.processes if process.place == place.name]

    def role(self, place: Place) -> Literal["actor", "learner"]:
        """Returns which packages a machine needs: a learner's if it runs one, else an actor's."""
        names = [process.name for process in self.on(place)]
        return "learner" if any(name.startswith("learner-") for name in names) else "actor"


@dataclasses.dataclass(frozen=True)
class Here:
    """This machine, which some rows may name."""

    workdir: Path
    python: str
    logdir: Path
    is_here: Callable[[str], bool]
    """Tells whether an address is one of this machine's."""


def make_plan(config: Config, rows: list[Row], here: Here) -> Plan:
    """Returns which process runs on which machine, with which flags.

    Actors are assigned to learners round robin: actor K to learner K % learners. Each process gets
    the flags of the launch, without those that only the launcher uses, and its own job, task and
    logdir.

    Args:
      config: the launch's flags; `logdir` is set.
      rows: as `workers.read_workers` gives them.
      here: the interpreter and folders for rows that name this machine. A relative --logdir is
        relative to the current folder here, and to the workdir on other machines.

    Raises:
      ConfigError: if rows of this machine disagree about its interpreter or folder.
    """
    places = _places(config, rows, here)
    learners = [row for row in rows if row.job == "learner"]
    actors = [row for row in rows if row.job == "actor"]
    learner_hosts = tuple(host_port(row.ip, row.tf_port or 0) for row in learners)
    shared: dict[str, Any] = {
        "learner_hosts": ",".join(learner_hosts),
        "actor_hosts": ",".join(_bracketed(row.ip) for row in actors),
    }
    if config.loss.algorithm == "ppo" and config.optimizer.batch_size is None:
        shared["batch_size"] = _ppo_batch_size(config, len(learners), actors)
    groups = _groups(config, learners, [places[_key(row)].name for row in learners])
    processes = [
        Process(
            name=f"{job}-{task}",
            place=places[_key(row)].name,
            arguments=_arguments(config, shared, task, places[_key(row)], row),
            environment=_environment(row),
            max_restarts=config.cluster.max_restarts if job == "learner" else None,
            group=groups[task] if job == "learner" else None,
        )
        for job, members in (("learner", learners), ("actor", actors))
        for task, row in enumerate(members)
    ]
    return Plan(
        tmux_sess=config.cluster.tmux_sess,
        places=tuple(dict.fromkeys(places.values())),
        processes=tuple(processes),
        learner_hosts=learner_hosts,
    )


def _ppo_batch_size(config: Config, num_learners: int, actors: list[Row]) -> int:
    """Returns how many unrolls every learner gets if each of its actors sends once."""
    usual = configs.resolved(config.process.envs_per_actor)
    envs = [usual if row.envs is None else row.envs for row in actors]
    return max(1, min(sum(envs[rank::num_learners]) for rank in range(num_learners)))


def host_port(host: str, port: int) -> str:
    """Returns host:port, with an IPv6 address in brackets."""
    return f"{_bracketed(host)}:{port}"


_Key = tuple[str, int, str | None]


def _key(row: Row) -> _Key:
    return row.ip, row.ssh_port, row.ssh_username


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _places(config: Config, rows: list[Row], here: Here) -> dict[_Key, Place]:
    places: dict[_Key, Place] = {}
    for row in rows:
        if _key(row) in places:
            continue
        user = row.ssh_username or getpass.getuser()
        same_ip = {_key(other)[1:] for other in rows if other.ip == row.ip}
        name = row.ip if len(same_ip) == 1 else f"{user}@{host_port(row.ip, row.ssh_port)}"
        if here.is_here(row.ip):
            # All rows of this machine are one Place, whatever addresses and users they name.
            workdir = here.workdir / (row.workdir or "")
            python = row.python or here.python
            places[_key(row)] = Place(
                "this machine", "", True, str(workdir), python, str(here.logdir)
            )
            continue
        places[_key(row)] = Place(
            name=name,
            ip=row.ip,
            is_local=False,
            workdir=row.workdir or REMOTE_WORKDIR,
            python=row.python or REMOTE_PYTHON,
            logdir=config.run.logdir or "",
            ssh_port=row.ssh_port,
            ssh_username=user,
            key_filename=row.key_filename,
        )
    local = dict.fromkeys(place for place in places.values() if place.is_local)
    if len(local) > 1:
        raise ConfigError(
            f"--workers_csv_path={config.cluster.workers_csv_path}: rows on this machine differ in "
            "python or workdir; give all of them the same"
        )
    return places


# Flags that only the launcher uses: its processes get the defaults.
_LAUNCH_ONLY = ("workers_csv_path", "tmux_sess", "detach", "accept_new_host_keys", "max_restarts",
                "rendezvous_port", "credentials")  # fmt: skip


def _arguments(
    config: Config, shared: dict[str, Any], task: int, place: Place, row: Row
) -> tuple[str, ...]:
    defaults = dict(configs.flat_items(Config()))
    own: dict[str, Any] = {
        **shared,
        **{name: defaults[name] for name in _LAUNCH_ONLY},
        "job_name": row.job,
        "task": task,
        "logdir": place.logdir,
    }
    if row.envs is not None:
        own["envs_per_actor"] = row.envs
    return ("run_experiment.py", *configs.to_flags(configs.replace(config, **own)))


def _environment(row: Row) -> tuple[tuple[str, str], ...]:
    if row.cuda_visible_devices is None:
        return ()
    return (("CUDA_VISIBLE_DEVICES", row.cuda_visible_devices),)


def _groups(config: Config, learners: list[Row], hosts: list[str]) -> list[Group | None]:
    """Returns each learner's position, numbered as Horovod does; a single learner has none."""
    if len(learners) == 1:
        return [None]
    local_ranks = [hosts[:rank].count(host) for rank, host in enumerate(hosts)]
    unique = list(dict.fromkeys(hosts))
    port = config.cluster.rendezvous_port or 1 + max(
        row.tf_port or 0 for row, host in zip(learners, hosts, strict=True) if host == hosts[0]
    )
    groups: list[Group | None] = []
    for rank, (row, host) in enumerate(zip(learners, hosts, strict=True)):
        # The hosts that have a learner with this local rank.
        peers = [other for other in unique if hosts.count(other) > local_ranks[rank]]
        groups.append(
            Group(
                rank=rank,
                size=len(learners),
                local_rank=local_ranks[rank],
                local_size=hosts.count(host),
                cross_rank=peers.index(host),
                cross_size=len(peers),
                host=row.ip,
                rendezvous_host=learners[0].ip,
                rendezvous_port=port,
            )
        )
    return groups


def default_logdir(config: Config) -> str:
    """Returns --logdir, or runs/LEVEL-AGENT if it is not set."""
    name = f"{configs.slug(config.environment.level_name)}-{config.agent.agent_name}"
    return config.run.logdir or f"runs/{name}"


def passwords(plan: Plan, rows: list[Row]) -> dict[str, Secret]:
    """Returns {name of the Place: password} for the machines that have one."""
    return {
        place.name: row.ssh_password
        for place in plan.places
        for row in rows
        if row.ssh_password is not None
        and not place.is_local
        and (place.ip, place.ssh_port) == (row.ip, row.ssh_port)
        and place.ssh_username == (row.ssh_username or getpass.getuser())
    }
