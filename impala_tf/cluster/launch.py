"""Launches a run on the machines of a workers CSV: checks all, records the run, starts it."""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from impala_tf import config as configs
from impala_tf.cluster import code
from impala_tf.cluster.machines import Machines, connected, good, on_all, problems
from impala_tf.cluster.node.plain import to_plain
from impala_tf.cluster.plan import NodeSpec, Plan, plan_of, warnings
from impala_tf.cluster.record import Record, claimed, load, save
from impala_tf.cluster.runner import (
    ClusterError,
    CommandRunner,
    NotSetUpError,
    ask_agent,
)
from impala_tf.config import ConfigError, Given, command_line, user_commands
from impala_tf.config.addresses import host_port
from impala_tf.logdir import moved_aside, replace_file
from impala_tf.machine import certificates
from impala_tf.machine.certificates import ACTOR_FILES, LEARNER_FILES, REVOKED
from impala_tf.machine.node import is_learner
from impala_tf.printable import printable, printable_parts

_START_S = 120.0
STOP_S = 120.0
"""How long processes may take to stop, by default."""
Differences = Callable[[Mapping[str, Any], str], list[str]]
"""Takes "flags" and "sources" of a run, and its logdir; returns lines if it is another run."""
Answer = Mapping[str, Any]
"""The answer of a machine to `check`; see `impala_tf.cluster.node.tasks.check`."""


def check(plan: Plan, runner: CommandRunner, logdir: Path, csv: str) -> Answer:
    """Asks a machine what a launch needs to know.

    Args:
      plan: the plan of the launch.
      runner: the machine.
      logdir: the run's logdir, on this machine.
      csv: the path of the workers CSV.

    Raises:
      ClusterError: with every problem that keeps a launch from using the machine.
    """
    node = runner.node
    learners = [process for process in plan.on(node) if process.is_learner]
    places = [learner.group for learner in learners if learner.group]
    spread = [place for place in places if place.is_spread]
    question = {
        "tmux_sess": plan.tmux_sess,
        "addresses": sorted({place.hosts[place.number] for place in spread}),
        "ports": [address for address in plan.served_by(node) if address[1]],
        "needs_horovod": bool(places),
        "names": sorted({plan.address_of(learner)[0] for learner in learners}),
    }
    setup = user_commands.frontend("setup", f"--workers_csv_path={csv}")
    try:
        answer: Answer = printable_parts(ask_agent(runner, "check", question))
    except NotSetUpError as error:
        raise ClusterError(f"{error}" if node.is_local else f"{error}; run {setup}") from error
    lines = []
    if answer["windows"]:
        lines.append(
            f"tmux session {plan.tmux_sess} exists already, with {', '.join(answer['windows'])};"
            " stop that run, or give another --tmux_sess"
        )
    if answer["running"]:
        stop = user_commands.frontend("stop", f"--logdir={logdir}")
        lines.append(f"{answer['logdir']} is in use by {', '.join(answer['running'])}; run {stop}")
    if answer["lacks_horovod"]:
        install = user_commands.install_horovod(Path(node.python)) if node.is_local else setup
        lines.append(f"several learners need Horovod, which {node.python} lacks; run {install}")
    # In that session or folder, ports are taken by that run's own learners.
    for host, port in [] if lines else answer["taken"]:
        lines.append(
            f"another process listens on {host_port(host, port)}; end it, or give the learner"
            " another tf_port"
        )
    if answer["loopback"] and len(plan.nodes) > 1:
        lines.append(
            f"/etc/hosts has a loopback address for {answer['loopback'][0]} there, so its learner"
            " would be out of reach; give the machine's address as ip"
        )
    if answer["foreign"]:
        lines.append(
            f"{answer['foreign'][0]} is no address of that machine itself, as several learners"
            " need; give such a one as ip, and the public one as ssh_host"
        )
    if lines:
        raise ClusterError([f"{node.name}: {line}" for line in lines])
    return answer


class Launcher:
    """Checks machines, and starts a run's processes there."""

    def __init__(self, record: Record, logdir: Path, archive: bytes = b"") -> None:
        """Touches no machine yet.

        Args:
          record: the run's record.
          logdir: the run's logdir, on this machine.
          archive: the run's code. Default: the code that was launched.
        """
        self.record = record
        self.logdir = logdir
        self.credentials = Path(record.credentials or logdir / "credentials")
        self._archive = archive or code.load(logdir, record.code)

    def refuse_revoked(self, runner: CommandRunner) -> None:
        """Raises ClusterError if a machine was revoked: learners refuse its actors."""
        name = runner.name
        if (revoked := certificates.revoked_folder(self.credentials, name)) is not None:
            raise ClusterError(
                f"{name}: was revoked; take it out of the workers CSV, or delete {revoked} and"
                " launch the run again to let it in"
            )

    def check(self, runner: CommandRunner) -> Answer:
        """Copies the run's code to a machine, and checks the machine as `check` does."""
        self.refuse_revoked(runner)
        code.install(runner, self._archive)
        return check(self.record.plan, runner, self.logdir, self.record.workers_csv_path)

    def start(self, runner: CommandRunner) -> None:
        """Starts the processes of a machine. Raises ClusterError if that fails."""
        record, node = self.record, runner.node
        values = secrets_here(record)
        if missing := [name for name in record.secrets if name not in values]:
            raise ClusterError(f"{node.name}: --secret={missing[0]}: not set in this shell")
        orders = {
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
        question = {
            "orders": orders,
            "credentials": self._credentials_of(node),
            "secrets": values,
        }
        ask_agent(runner, "launch", question, _START_S)

    def cancel(self, runner: CommandRunner) -> None:
        """Keeps an interrupted `start` from starting something later."""
        ask_agent(runner, "cancel", {"run_id": self.record.run_id})

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
        answer = self.check(runner)
        if runner.name == self.record.first_learner().name and not _mirror_of(self.record):
            _refuse_to_begin_again(self.record, answer)
        self.start(runner)


def new_record(plan: Plan, given: Given) -> Record:
    """Returns the record of a new launch."""
    cluster = given.cluster
    return Record(
        run_id=secrets.token_hex(8),
        launched_unix_s=time.time(),
        workers_csv_path=str(Path(cluster.workers_csv_path or "").resolve()),
        flags=tuple(configs.to_flags(given.without("fresh"))),
        plan=plan,
        max_hours=cluster.max_hours,
        end_command=cluster.end_command,
        secrets=cluster.secret,
        credentials=str(Path(given["credentials"]).absolute()) if given["credentials"] else "",
    )


def secrets_here(record: Record) -> dict[str, str]:
    """Returns {name: value} of a run's secrets in this shell. They are only sent as input."""
    return {name: os.environ[name] for name in record.secrets if name in os.environ}


def check_secrets(given: Given) -> None:
    """Raises ConfigError if a variable of --secret is not set here."""
    if missing := [name for name in given.cluster.secret if name not in os.environ]:
        raise ConfigError([f"--secret={name}: not set in this shell" for name in missing])


def launch(
    given: Given, differences: Differences, show: Callable[[Launcher, Machines], int]
) -> int:
    """Launches a run and, without --detach, shows it until it ends.

    Args:
      given: the run's flags, with `workers_csv_path` and `logdir`.
      differences: compares this run with the one in its logdir.
      show: shows the run; its result is returned.

    Raises:
      ClusterError: a machine that is needed cannot be used, or the logdir or tmux session is in
        use. Nothing runs.
      ConfigError: the workers CSV cannot be used, or the logdir holds another run. Nothing was
        started, and no connection was opened for a bad CSV.
    """
    plan, passwords = plan_of(given, sys.executable)
    check_secrets(given)
    for line in warnings(plan):
        print(line, file=sys.stderr)
    logdir = Path(given["logdir"]).resolve()
    archive = code.pack(code.own_names(given))
    digest = code.digest(archive)
    plan = code.with_code(plan, digest)
    launcher = Launcher(new_record(plan, given)._replace(code=digest), logdir, archive)
    with connected(plan.nodes, passwords) as machines:
        # If two launches went on, the record of one would replace that of the other, whose run
        # could then not be stopped.
        with claimed(logdir) as is_only:
            if not is_only:
                raise ClusterError(f"--logdir={logdir}: another launch is starting there now")
            answers = on_all(machines.reached(), launcher.check)
            _lose(given, launcher, machines, {**machines.found, **answers})
            has_started = _look_at_earlier_run(given, launcher, machines, answers, differences)
            certificates.ensure(launcher.credentials, keep_authority=True)
            logdir.mkdir(parents=True, exist_ok=True)
            replace_file(logdir / code.NAME, archive, 0o644)  # for machines that join later
            launcher.record = launcher.record._replace(has_started=True)
            save(launcher.record, logdir)
            try:
                results = on_all(machines.reached(), launcher.start)
                _lose(given, launcher, machines, results)
            except BaseException:
                save(launcher.record._replace(has_started=has_started), logdir)
                _take_back(launcher, machines)
                raise
        if given.cluster.detach:
            print(f"started {where_it_runs(launcher, machines)}")
            return 0
        return show(launcher, machines)


def where_it_runs(launcher: Launcher, machines: Machines) -> str:
    """Says how many processes run on reached machines, and how to look after them."""
    nodes = [runner.node for runner in machines.reached()]
    count = sum(len(launcher.record.plan.on(node)) for node in nodes)
    status = user_commands.frontend("status", f"--logdir={launcher.logdir}")
    return f"{count} processes on {len(nodes)} machine(s); see {status}"


def _lose(
    given: Given, launcher: Launcher, machines: Machines, results: Mapping[str, object]
) -> None:
    """Goes on without machines that failed. Raises ClusterError if too few are left for the run."""
    failed = {n: each for n, each in results.items() if isinstance(each, ClusterError)}
    machines.found.update(failed)
    lost, plan = problems(machines.found), launcher.record.plan
    reached = {runner.name for runner in machines.reached()}
    names = [process.name for process in plan.processes if process.node in reached]
    learners = sum(map(is_learner, names))
    actors, all_learners = len(names) - learners, len(plan.learner_hosts)
    fewest_learners, fewest = given.cluster.min_learners, given.cluster.min_actors
    hints = []
    if learners < (fewest_learners or all_learners):
        hints.append(f"--min_learners={learners}")
    if actors < (len(plan.processes) - all_learners if fewest is None else fewest):
        hints.append(f"--min_actors={actors}")
    if lost and "learner-0" not in names:
        asked = fewest is not None or fewest_learners is not None
        hint = "learner-0 is needed: its machine has the run's checkpoints"
        raise ClusterError([*lost, *([hint] if asked else [])])
    if hints:
        hint = f"{' '.join(hints)} starts the run without them, and they join later"
        raise ClusterError([*lost, *([hint] if actors else [])])
    for line in problems(failed):
        print(f"{line}; the run starts without it", file=sys.stderr)


def _take_back(launcher: Launcher, machines: Machines) -> None:
    """Stops what a launch has started; says what may still run."""
    print("stopping what has been started ...", file=sys.stderr, flush=True)
    # After Ctrl-C, threads may still be starting processes.
    lines = problems(on_all(machines.reached(), launcher.cancel))
    # Without --end_command, which may switch machines off: the run has hardly begun.
    lines += problems(end_processes(launcher.record, machines.reached(), is_final=False))
    if lines:
        stop = user_commands.frontend("stop", f"--logdir={launcher.logdir}")
        print(*lines, f"{stop} stops what still runs there", sep="\n", file=sys.stderr)


def _look_at_earlier_run(
    given: Given,
    launcher: Launcher,
    machines: Machines,
    answers: Mapping[str, Answer | ClusterError],
    differences: Differences,
) -> bool:
    """Moves an earlier run aside, or checks that the launch continues it.

    Returns:
      Whether learner 0's machine has started the run before.

    Raises:
      ConfigError: it is another run, or may have checkpoints that learner 0 lacks now.
    """
    if given["fresh"]:
        _set_aside(launcher.logdir, machines)
        return False
    first = launcher.record.first_learner()
    answer = good(answers)[first.name]
    if lines := differences(answer["run"], answer["logdir"]):
        raise ConfigError(lines)
    try:
        before = load(launcher.logdir)
    except ConfigError:
        return False  # the first launch, or a damaged record
    was_on, mirror = before.first_learner().name, _mirror_of(launcher.record)
    if not before.has_started or answer["run"] or (mirror and mirror == _mirror_of(before)):
        return before.has_started
    if was_on != first.name:
        raise ConfigError(
            f"--workers_csv_path={launcher.record.workers_csv_path}: learner-0 was on {was_on},"
            f" which may have the run's checkpoints, and now is on {first.name}; make {was_on} the"
            " first learner again, or give --fresh to start from frame 0"
        )
    _refuse_to_begin_again(before, answer)
    return True


def _refuse_to_begin_again(record: Record, answer: Answer) -> None:
    """Raises ConfigError if learner 0's machine has lost the run, which would start from frame 0.

    Args:
      record: the record of the launch that started the run there.
      answer: the machine's, now.
    """
    if record.has_started and not answer["has_files"]:
        raise ConfigError(
            f"{record.first_learner().name}: the run was started there, but {answer['logdir']} has"
            " nothing of it (a disk that is not mounted?); bring the files back, or launch the run"
            " with --fresh to start from frame 0"
        )


def _mirror_of(record: Record) -> str:
    return str(command_line.parse(record.flags)["mirror"] or "")


def _set_aside(logdir: Path, machines: Machines) -> None:
    """Moves an earlier run's files aside in all logdirs, here and on the machines."""
    moved = on_all(machines.reached(), lambda runner: ask_agent(runner, "set_aside", {})["moved"])
    if failed := problems(moved):
        raise ClusterError(failed)
    for name, target in {**good(moved), "here": moved_aside(logdir)}.items():
        if target:
            text = printable(f"{name}: the run that was there is now in {target}")
            print(text, file=sys.stderr)


def end_processes(
    record: Record,
    runners: Sequence[CommandRunner],
    names: Collection[str] | None = None,
    timeout_s: float = STOP_S,
    close: bool = True,
    is_final: bool = True,
) -> dict[str, Answer | ClusterError]:
    """Stops a run's processes on machines; see `impala_tf.cluster.node.tasks.stop`.

    Args:
      record: the run's record.
      runners: the machines.
      names: the processes. Default: all.
      timeout_s: how long to wait for them.
      close: whether to close tmux windows where no process is left.
      is_final: whether the machines then run --end_command.
    """

    def end_on(runner: CommandRunner) -> Answer:
        processes = {process.name for process in record.plan.on(runner.node)}
        question = {
            "run_id": record.run_id,
            "tmux_sess": record.plan.tmux_sess,
            "names": None if names is None else sorted(processes & set(names)),
            "timeout_s": timeout_s,
            "close": close,
            "is_final": is_final,
        }
        answer: Answer = printable_parts(ask_agent(runner, "stop", question, timeout_s + 60.0))
        return answer

    return on_all(runners, end_on)
