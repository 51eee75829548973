"""Carries out a plan: checks every machine, brings its files up to date, starts its processes."""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from impala_tf import config as configs
from impala_tf.config import ConfigError, Given, command_line, user_commands
from impala_tf.config.addresses import host_port
from impala_tf.frontend import code
from impala_tf.frontend.claims import claimed
from impala_tf.frontend.node.plain import to_plain
from impala_tf.frontend.plan import NodeSpec, Plan
from impala_tf.frontend.record import Record, load, save
from impala_tf.frontend.runner import (
    ClusterError,
    CommandRunner,
    NoCodeError,
    NotSetUpError,
    ask_agent,
)
from impala_tf.machine import certificates
from impala_tf.machine.certificates import ACTOR_FILES, LEARNER_FILES, REVOKED

_LAUNCH_S = 120.0


class Checked(NamedTuple):
    """A machine on which a launch is possible."""

    workdir: str
    logdir: str
    """Absolute, as is workdir."""
    run: Mapping[str, Any]
    """"flags" and "sources" of the run in the logdir; {} if there is none."""
    has_files: bool
    """Whether the logdir has any files of a run."""


def claimed_start(record: Record) -> contextlib.AbstractContextManager[bool]:
    """Claims the start of a run; yields whether no launch on this machine is starting it."""
    return claimed(f"start of {record.run_id}")


def new_record(plan: Plan, given: Given) -> Record:
    """Returns the record of a new launch."""
    cluster = given.cluster
    return Record(
        run_id=secrets.token_hex(8),
        launched_unix_s=time.time(),
        workers_csv_path=str(Path(cluster.workers_csv_path or "").resolve()),
        flags=tuple(configs.to_flags(given)),
        plan=plan,
        max_hours=cluster.max_hours,
        end_command=cluster.end_command,
        secrets=cluster.secret,
        credentials=str(Path(given["credentials"]).absolute()) if given["credentials"] else "",
    )


class Launcher:
    """Starts the processes of a run on machines."""

    def __init__(self, record: Record, logdir: Path, archive: bytes = b"") -> None:
        """Touches no machine yet.

        Args:
          record: the run's record.
          logdir: the run's logdir, on this machine.
          archive: the run's code. Default: the code that was launched.
        """
        self.record = record._replace(code=code.digest(archive)) if archive else record
        self.credentials = Path(record.credentials or logdir / "credentials")
        self._logdir = logdir
        self._writing = threading.Lock()  # machines may join at the same time
        self._archive = archive or code.load(logdir, record.code)

    def refuse_revoked(self, runner: CommandRunner) -> None:
        """Raises ClusterError if a machine was revoked: learners refuse its actors."""
        name = runner.node.name
        if (revoked := certificates.revoked_folder(self.credentials, name)) is not None:
            raise ClusterError(
                f"{name}: was revoked; take it out of the workers CSV, or delete {revoked} and"
                " launch the run again to let it in"
            )

    def check(self, runner: CommandRunner) -> Checked:
        """Checks that a launch is possible on a machine, and copies the run's code to it.

        Raises:
          ClusterError: with every problem.
        """
        plan, node = self.record.plan, runner.node
        csv = f"--workers_csv_path={self.record.workers_csv_path}"
        setup = user_commands.frontend("setup", csv)
        self.refuse_revoked(runner)
        learners = [process for process in plan.on(node) if process.is_learner]
        leaders = [each.group for each in learners if each.group and each.group.number == 0]
        rendezvous = [(group.hosts[0], group.rendezvous_port) for group in leaders]
        question = {
            "tmux_sess": plan.tmux_sess,
            "addresses": [node.address] if learners and node.address else [],
            "ports": [*map(plan.address_of, learners), *rendezvous],
            "needs_horovod": any(learner.group for learner in learners),
            "names": sorted({plan.address_of(learner)[0] for learner in learners}),
        }
        try:
            answer = self._ask(runner, question)
        except NotSetUpError as error:
            if node.is_local:
                raise
            raise ClusterError(f"{error.problems[0]}; run {setup}") from error
        lines = []
        if answer["windows"]:
            lines.append(
                f"{node.name}: tmux session {plan.tmux_sess} exists already, with "
                f"{', '.join(answer['windows'])}; stop that run, or give another --tmux_sess"
            )
        if answer["running"]:
            lines.append(
                f"{node.name}: {answer['logdir']} is in use by {', '.join(answer['running'])}; "
                f"stop it with {user_commands.frontend('stop', f'--logdir={self._logdir}')}, or"
                f" there with tmux kill-session -t {plan.tmux_sess}, or give another --logdir"
            )
        if answer["lacks_horovod"]:
            here = user_commands.install_horovod(Path(node.python))
            lines.append(
                f"{node.name}: several learners need Horovod, which {node.python} does not have"
                f" there; run {here if node.is_local else setup}"
            )
        # In that session or folder, ports are taken by that run's own learners.
        for host, port in [] if lines else answer["taken"]:
            other = "the learner another tf_port"
            if (host, port) in rendezvous:
                other = "learner-0 another tf_port: learners meet at the next one"
            lines.append(
                f"{node.name}: another process listens on {host_port(host, port)}; end it, or give"
                f" {other}"
            )
        if answer["loopback"] and len({each.node for each in plan.processes}) > 1:
            lines.append(
                f"{node.name}: there, /etc/hosts has a loopback address for"
                f" {answer['loopback'][0]}, so its learner would be out of reach; give the"
                " machine's address as ip, and the name as ssh_host"
            )
        spread = [each for each in learners if each.group is not None and each.group.is_spread]
        if answer["foreign"] and spread:
            lines.append(
                f"{node.name}: {answer['foreign'][0]} is not an address of that machine (NAT?), "
                "but several learners connect to each other's own addresses: give one as ip, and "
                "the public one as ssh_host"
            )
        if lines:
            raise ClusterError(lines)
        return Checked(answer["workdir"], answer["logdir"], answer["run"], answer["has_files"])

    def _ask(self, runner: CommandRunner, question: Mapping[str, Any]) -> Any:
        try:
            return ask_agent(runner, "check", question)
        except NoCodeError:
            code.install(runner, self._archive)
            return ask_agent(runner, "check", question)

    def start(self, runner: CommandRunner) -> None:
        """Starts the processes of a machine. Raises ClusterError if that fails."""
        question = {
            "orders": orders_for(self.record, runner.node),
            "credentials": self._credentials_of(runner.node),
            "secrets": self._secrets(runner.node),
        }
        ask_agent(runner, "launch", question, _LAUNCH_S)

    def cancel(self, runner: CommandRunner) -> None:
        """Keeps an interrupted `start` from starting something later."""
        question = {"run_id": self.record.run_id}
        try:
            ask_agent(runner, "cancel", question)
        except ClusterError:  # `start` shares the connection, and closes it when it is lost
            ask_agent(runner, "cancel", question)

    def _secrets(self, node: NodeSpec) -> dict[str, str]:
        values = secrets_here(self.record)
        for name in self.record.secrets:
            if name not in values:
                raise ClusterError(f"{node.name}: --secret={name}: not set in this shell")
        return values

    def _credentials_of(self, node: NodeSpec) -> dict[str, str]:
        """Returns {file name: text}. A machine with only actors gets a certificate of its own."""
        if self.record.plan.role(node) == "actor" and not node.is_local:
            return certificates.of_machine(self.credentials, node.name)
        names = {*ACTOR_FILES, *LEARNER_FILES, REVOKED}
        paths = (self.credentials / name for name in sorted(names))
        return {path.name: path.read_text() for path in paths if path.exists()}

    def bring_in(self, runner: CommandRunner) -> None:
        """Checks a machine and starts its processes.

        Raises:
          ClusterError: the check or the start fails.
          ConfigError: the run would start again from frame 0.
        """
        checked = {runner.node.name: self.check(runner)}
        is_mirrored = bool(command_line.parse(self.record.flags)["mirror"])
        if runner.node.name == self.record.first_learner().name and not is_mirrored:
            refuse_to_begin_again(self.record, checked[runner.node.name])
        self.remember(checked)
        self.start(runner)

    def remember(self, checked: Mapping[str, Checked], has_started: bool = False) -> None:
        """Writes the record, with the absolute folders of the machines that were checked."""
        with self._writing:
            with contextlib.suppress(ConfigError):
                written = load(self._logdir)
                if written.run_id == self.record.run_id:
                    self.record = written  # `frontend add` may have added actors meanwhile
            nodes = tuple(
                node._replace(workdir=found.workdir, logdir=found.logdir)
                if (found := checked.get(node.name))
                else node
                for node in self.record.plan.nodes
            )
            self.record = self.record._replace(
                plan=self.record.plan._replace(nodes=nodes),
                has_started=self.record.has_started or has_started,
            )
            code.save(self._archive, self._logdir)
            save(self.record, self._logdir)


def refuse_to_begin_again(record: Record, found: Checked) -> None:
    """Raises ConfigError if learner 0's machine has lost the run, which would start from frame 0.

    Args:
      record: the record of the launch that started the run there.
      found: the machine's state now.
    """
    if record.has_started and not found.has_files:
        name = record.first_learner().name
        raise ConfigError(
            f"{name}: the run was started there, but {found.logdir} has nothing of it (a disk that"
            f" is not mounted, or a new machine?); mount the disk or copy the run's logdir to"
            f" {name}, or launch the run with --fresh to start from frame 0"
        )


def secrets_here(record: Record) -> dict[str, str]:
    """Returns {name: value} of a run's secrets in this shell. They are only sent as input."""
    return {name: os.environ[name] for name in record.secrets if name in os.environ}


def orders_for(record: Record, node: NodeSpec) -> dict[str, Any]:
    """Returns what the agent of a machine makes the orders of its node of."""
    return {
        "run_id": record.run_id,
        "node": node.id,
        "tmux_sess": record.plan.tmux_sess,
        "logdir": node.logdir,
        "processes": to_plain(record.plan.on(node)),
        "max_hours": record.max_hours,
        "end_command": record.end_command,
        "secrets": record.secrets,
        "code": node.code,
    }
