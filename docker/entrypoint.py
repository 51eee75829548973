"""Runs a container's command: `learner|actor|join FLAGS`, `credentials ...`, or any other command.

FLAGS are those of run_experiment.py. The entry point adds what a container needs in addition: the
role, an actor's number, a rendezvous for several learners, and a note for the health check
(docker/health.py). `join` is for a node of a job, such as a pod (examples/kubernetes.yaml).
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import health

from impala_tf import config as configs
from impala_tf.config import ConfigError, Given, command_line
from impala_tf.machine import certificates
from impala_tf.machine.supervision import LEARNER_RESTARTS

ROOT = Path(__file__).resolve().parent.parent
_TASKS = 2**31 - 1
_GROUP_HOSTS = "IMPALA_TF_GROUP_HOSTS"
WORK = Path(tempfile.gettempdir())


def task_of(hostname: str) -> int:
    """Returns an actor's number, which depends only on the host name.

    The replicas of a service get the same flags, but each has a different host name.
    """
    return int.from_bytes(hashlib.sha256(hostname.encode()).digest()[:4], "big") % _TASKS


def command(role: str, arguments: Sequence[str]) -> list[str]:
    """Returns the command of a role, and leaves a note for the health check.

    Raises:
      ConfigError: the flags are unusable.
    """
    if role == "actor":
        return _actor_command(arguments)
    if role == "learner":
        return _learner_command(arguments)
    if role == "join":
        return _join_command(arguments)
    if role == "credentials":
        return [sys.executable, str(ROOT / "docker" / "credentials.py"), *arguments]
    return [role, *arguments]


def _heartbeats() -> str:
    """Tells the actors where to leave heartbeats; returns what their files' names begin with."""
    return os.environ.setdefault("IMPALA_TF_HEARTBEATS", str(WORK / "impala_tf-heartbeat"))


def _run_experiment(*arguments: str) -> list[str]:
    return [sys.executable, str(ROOT / "run_experiment.py"), *arguments]


def _actor_command(arguments: Sequence[str]) -> list[str]:
    added = ["--job_name=actor"]
    if not any(word == "--task" or word.startswith("--task=") for word in arguments):
        added.append(f"--task={task_of(socket.gethostname())}")
    task = command_line.parse([*added, *arguments])["task"]
    _leave(health.actor_note(Path(f"{_heartbeats()}-{task}")))
    return _run_experiment(*added, *arguments)


def _learner_command(arguments: Sequence[str]) -> list[str]:
    from impala_tf.logdir import Logdir

    added = ["--job_name=learner"]
    given = command_line.parse([*added, *arguments])
    if given["logdir"] is None:
        raise ConfigError(
            "--logdir: name a folder on a volume, or the run is lost with its container"
        )
    logdir, task = Logdir(Path(given["logdir"])), given["task"]
    hosts = configs.split(given["learner_hosts"])
    authority = Path(given["credentials"] or logdir.credentials) / "ca.pem"
    _leave(
        health.learner_note(logdir.status(task), hosts[task], authority, certificates.LEARNER_NAME)
    )
    if len(hosts) == 1:
        return _run_experiment(*added, *arguments)
    if os.environ.get(_GROUP_HOSTS):
        # This container is in two networks, and its name may mean either address.
        everywhere = f"0.0.0.0:{hosts[task].rpartition(':')[2]}"
        listening = ",".join([*hosts[:task], everywhere, *hosts[task + 1 :]])
        given = given.replace(learner_hosts=listening)
    return _in_a_group(_run_experiment(*configs.to_flags(given)), given, hosts)


def _join_command(arguments: Sequence[str]) -> list[str]:
    from impala_tf.frontend import join
    from impala_tf.frontend.engines import places
    from impala_tf.frontend.node import state
    from impala_tf.logdir import Logdir

    added = ["--join"]
    given = places.applied(command_line.parse([*added, *arguments]), os.environ)
    if given["logdir"] is None or not given["job_name"]:
        raise ConfigError("join: needs --logdir, and a job of at least two nodes")
    logdir, task = Logdir(Path(given["logdir"]).absolute()), given["task"]
    supervisor = state.state_path(logdir.path, join.node_name(given))
    if given["job_name"] == "actor":
        beats = {f"actor-{number}": f"{_heartbeats()}-{number}" for number in join.tasks(given)}
        _leave(health.node_note(supervisor, beats))
    else:
        authority = Path(given["credentials"] or logdir.credentials) / "ca.pem"
        address = configs.split(given["learner_hosts"])[task]
        learner = health.learner_note(
            logdir.status(task), address, authority, certificates.LEARNER_NAME
        )
        _leave({**health.node_note(supervisor), **learner})
    return _run_experiment(*added, *arguments)


def _in_a_group(command: list[str], given: Given, hosts: Sequence[str]) -> list[str]:
    """Returns the command of a learner that waits for the others before each start."""
    from impala_tf.frontend.node import state
    from impala_tf.frontend.plan import group_infos

    number, logdir = given["task"], Path(given["logdir"]).absolute()
    # The learners' names in their own network, if they have one without actors.
    group_hosts = os.environ.get(_GROUP_HOSTS, "")
    names = group_hosts.split(",") if group_hosts else [host.rpartition(":")[0] for host in hosts]
    if len(names) != len(hosts):
        raise ConfigError(
            f"{_GROUP_HOSTS}={group_hosts}: name {len(hosts)}, as --learner_hosts does"
        )
    ports = [int(host.rpartition(":")[2]) for host in hosts]
    # Each learner has its own container, which counts as a machine.
    learners, cluster = list(zip(names, ports, hosts, strict=True)), given.cluster
    groups = group_infos(learners, cluster.min_learners)
    name = f"learner-{number}"
    orders = state.Orders(
        # Distinguishes this group from others at the rendezvous.
        run_id=hashlib.sha256(f"{logdir} {hosts}".encode()).hexdigest()[:16],
        node=f"node-{name}",
        tmux_sess="",
        logdir=str(logdir),
        credentials=str(given["credentials"] or logdir / "credentials"),
        processes=(
            state.ProcessSpec(
                name,
                "",
                tuple(command[1:]),
                max_restarts=LEARNER_RESTARTS,
                group=groups[number],
            ),
        ),
        **state.start_of_run(),
    )
    path = WORK / "impala_tf-learner.orders.json"
    state.write(path, orders)
    return [sys.executable, "-m", "impala_tf.frontend.node.supervisor", str(path), "--echo"]


def _leave(note: Mapping[str, object]) -> None:
    health.NOTE.write_text(json.dumps(note), encoding="utf-8")


def main(arguments: Sequence[str]) -> int:
    """Replaces this process by the command; returns an exit status only if that fails."""
    if not arguments:
        return command_line.fail(ConfigError("name a role: learner, actor, join or credentials"))
    try:
        words = command(arguments[0], arguments[1:])
    except ConfigError as error:
        return command_line.fail(error)
    try:
        os.execvp(words[0], words)
    except OSError as error:
        return command_line.fail(ConfigError(f"{words[0]}: {error.strerror}"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
