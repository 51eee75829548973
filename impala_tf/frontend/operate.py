"""What looks after a launched run: `stop`, and what it lost, `restart`, `add` and others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from impala_tf.config import ConfigError, command_line, user_commands
from impala_tf.frontend import code
from impala_tf.frontend.launcher import (
    Launcher,
    claimed_start,
    orders_for,
    secrets_here,
)
from impala_tf.frontend.machines import Machines, connected, good, on_all, problems
from impala_tf.frontend.node.state import ProcessSpec
from impala_tf.frontend.plan import Plan, plan_of, spans
from impala_tf.frontend.record import Record, load, save
from impala_tf.frontend.runner import ClusterError, CommandRunner, ask_agent
from impala_tf.frontend.status import look
from impala_tf.machine import certificates
from impala_tf.machine.node import is_learner
from impala_tf.machine.supervision import ENDED_AS_TOLD, describe

STOP_S = 120.0
MAY_BE_LOST = "what was learned since the last checkpoint may be lost"
REVOKED_AFTER_S = 5
"""Longer than `impala_tf.transport.credentials.READ_AGAIN_S`, after which learners know."""


def stop(
    logdir: Path,
    target: str | None = None,
    timeout_s: float = STOP_S,
) -> int:
    """Stops the processes of a run, and nothing else.

    Learners of a group stop together. A launch that is starting the run's processes starts no more
    of them; a launch that is still checking machines continues.

    Args:
      logdir: the run's logdir, on this machine.
      target: a process, or a machine, which means all of its processes. Default: all processes.
      timeout_s: how long to wait for the learners, and then for all processes.

    Returns:
      1 if a process still runs or had to be killed, a learner may not have saved what it has
      learned, or a machine is unreachable, else 0.
    """
    record = load(logdir)
    names = None if target is None else _processes_called(record.plan, target)
    nodes = record.plan.nodes if names is None else record.plan.nodes_of(names)
    with connected(nodes, record.passwords()) as machines:
        cancelled = {} if names else _cancel_launch(record, machines, logdir)
        ended = end(record, machines, logdir, timeout_s, names=names)
        lines = problems(machines.found) + problems(cancelled) + ended.lines + ended.lost
    if names is not None:
        again = user_commands.frontend("restart", f"--logdir={logdir}", str(target))
        return report(lines, f"stopped {', '.join(sorted(names))}; {again} starts them again")
    was_there = cancelled or ended.was_running
    summary = "stopped: no process of the run is left" if was_there else "nothing was running"
    return report(lines, f"{summary} on {len(record.plan.nodes)} machine(s)")


def _cancel_launch(
    record: Record, machines: Machines, logdir: Path
) -> dict[str, None | ClusterError]:
    """Stops a launch that is starting the run's processes from starting more.

    Returns:
      {name of the node: None or an error}; {} if there is no such launch.
    """
    with claimed_start(record) as is_over:
        if is_over:
            return {}
    return on_all(machines.reached(), Launcher(record, logdir).cancel)


class Ended(NamedTuple):
    """The result of `end`."""

    was_running: bool
    """Whether a process ran and had to be stopped."""
    lines: list[str]
    """One line for each process that still runs, each actor that had to be killed, and each machine
    that cannot be asked; and a line that names the machines where processes may still run."""
    lost: list[str]
    """One line for each learner that may not have saved what it has learned."""


def end(
    record: Record,
    machines: Machines,
    logdir: Path,
    timeout_s: float = STOP_S,
    is_final: bool = True,
    names: Collection[str] | None = None,
) -> Ended:
    """Stops the processes of a run, learners first. Closes tmux windows where no process is left.

    Args:
      record: the run's record.
      machines: the run's machines.
      logdir: the run's logdir, on this machine.
      timeout_s: how long to wait for the learners, and then for all processes.
      is_final: whether the machines then run --end_command.
      names: the processes. Default: all.
    """
    plan = record.plan
    with_learners = [r for r in machines.reached() if plan.role(r.node) == "learner"]
    learners = [
        p.name for p in plan.processes if p.is_learner and (names is None or p.name in names)
    ]
    first = end_processes(
        record, with_learners if learners else [], learners, timeout_s, False, is_final
    )
    then = end_processes(record, machines.reached(), names, timeout_s, True, is_final)
    answers = [*good(first).values(), *good(then).values()]
    lost = lost_work(first, logdir) + lost_work(then, logdir)
    lines = left_running(then)
    if is_final:
        lines += may_still_run({**machines.found, **then})
    return Ended(any(answer["stopped"] for answer in answers), lines, lost)


def may_still_run(answers: Mapping[str, object]) -> list[str]:
    """Returns a line that names the machines that could not be asked, if there are any."""
    names = [name for name, found in answers.items() if isinstance(found, ClusterError)]
    line = f"{', '.join(names)}: processes may still run there; the same command tries again"
    return [line] if names else []


def left_running(answers: Mapping[str, dict[str, Any] | ClusterError]) -> list[str]:
    """Returns one line for each process that `end_processes` could not stop, or actor it killed."""
    lines = problems(answers)
    for name, answer in good(answers).items():
        lines += [f"{name}: {process} is still running (pid {pid})"
                  for process, pid in answer["left"].items()]  # fmt: skip
        lines += [
            f"{name}: {process} did not stop in time and was killed"
            for process, status in answer["stopped"].items()
            if status == -signal.SIGKILL and not is_learner(process)
        ]
    return lines


def lost_work(answers: Mapping[str, dict[str, Any] | ClusterError], logdir: Path) -> list[str]:
    """Returns one line for each learner that may not have saved before `end_processes` ended it.

    Args:
      answers: the result of `end_processes`.
      logdir: the run's logdir, on this machine.
    """
    lines = []
    for name, answer in good(answers).items():
        for process, status in answer["stopped"].items():
            if is_learner(process) and (status is None or status not in ENDED_AS_TOLD):
                logs = user_commands.frontend("logs", f"--logdir={logdir}", process)
                lines.append(f"{name}: {process}: {_how(status)}; {MAY_BE_LOST}; see {logs}")
    return lines


def _how(status: int | None) -> str:
    if status is None:  # its supervisor was dead, or could not write it to a full disk
        return "how it ended is not known"
    if status == -signal.SIGKILL:
        return "did not stop in time and was killed"
    return describe(status)


def end_processes(
    record: Record,
    runners: Sequence[CommandRunner],
    names: Collection[str] | None,
    timeout_s: float,
    close: bool,
    is_final: bool = True,
) -> dict[str, dict[str, Any] | ClusterError]:
    """Stops a run's processes on machines; see `impala_tf.frontend.node.agent.stop`."""

    def end_on(runner: CommandRunner) -> dict[str, Any]:
        processes = {process.name for process in record.plan.on(runner.node)}
        question = {
            "run_id": record.run_id,
            "tmux_sess": record.plan.tmux_sess,
            "names": None if names is None else sorted(processes & set(names)),
            "timeout_s": timeout_s,
            "close": close,
            "is_final": is_final,
        }
        return ask_agent(runner, "stop", question, timeout_s + 60.0)

    return on_all(runners, end_on)


def restart(logdir: Path, target: str) -> int:
    """Restarts a process, or all processes of a machine, even one that joins the run late.

    Learners of a group restart together.

    Args:
      logdir: the run's logdir, on this machine.
      target: a process, or a machine, which means all of its processes.
    """
    record = load(logdir)
    names = _processes_called(record.plan, target)
    launcher = Launcher(record, logdir)
    nodes = record.plan.nodes_of(names)
    with connected(nodes, record.passwords()) as machines:
        results = on_all(machines.reached(), lambda runner: _start_again(launcher, runner, names))
        lines = problems(machines.found) + problems(results)
    return report(lines, f"restarted {', '.join(sorted(names))}")


def _start_again(launcher: Launcher, runner: CommandRunner, names: Collection[str]) -> None:
    """Starts those of the processes that are a machine's, whether it knows them or not."""
    record = launcher.record
    if look(runner, record).state is None:
        launcher.bring_in(runner)
        return
    launcher.refuse_revoked(runner)
    question = {
        "processes": orders_for(record, runner.node)["processes"],
        "names": sorted(process.name for process in record.plan.on(runner.node)
                        if process.name in names),
        # A machine whose processes were stopped has no secrets any more.
        "secrets": secrets_here(record),
    }  # fmt: skip
    ask_agent(runner, "restart", question, 120.0)


def add(logdir: Path) -> int:
    """Starts the actors of rows that were appended to the workers CSV since the launch.

    If one of their machines cannot be reached, or was revoked, no row is added: its address may be
    wrong, and without it, the actors after it would have other numbers.

    Args:
      logdir: the run's logdir, on this machine.
    """
    record = load(logdir)
    # In the flags, the CSV and the logdir may be relative to another folder.
    given = command_line.parse(record.flags).replace(workers_csv_path=record.workers_csv_path)
    plan, passwords = plan_of(given, sys.executable, logdir.resolve(), record.plan.nodes)
    new = _new_actors(record, plan)
    if not new:
        print("the workers CSV has no new rows")
        return 0
    launcher = Launcher(record, logdir)
    plan = code.with_code(plan, record.code)
    known = {node.name: node for node in record.plan.nodes}
    plan = plan._replace(nodes=tuple(known.get(node.name, node) for node in plan.nodes))
    nodes = plan.nodes_of([process.name for process in new])
    with connected(nodes, passwords) as machines:
        refused = on_all(machines.reached(), launcher.refuse_revoked)
        if lines := problems(machines.found) + problems(refused):
            again = user_commands.frontend("add", f"--logdir={logdir}")
            lines.append(
                f"no row was added; correct the rows or take them out: then, {again} tries again"
            )
            return report(lines)
        launcher.record = _with_actors(logdir, record, plan)
        names = [process.name for process in new]
        results = on_all(machines.reached(), lambda runner: _start_again(launcher, runner, names))
    lines = problems(results)
    if started := [process for process in new if process.node in good(results)]:
        print(f"added {_listed(started)}")
    if waiting := [process for process in new if process.node not in good(results)]:
        again = user_commands.frontend("restart", f"--logdir={logdir}", "HOST")
        lines.append(
            f"in the run, but not started: {_listed(waiting)}; {again} tries a machine again"
        )
    return report(lines)


def _with_actors(logdir: Path, before: Record, plan: Plan) -> Record:
    """Writes the record of the run with a plan of all rows.

    Args:
      logdir: the run's logdir, on this machine.
      before: the record when the new rows were read.
      plan: of all rows.

    Raises:
      ConfigError: another command has added rows, or has launched a run there.
    """
    # Logging in takes long; meanwhile, machines of the run may have told an attached launcher their
    # folders.
    now = load(logdir)
    names = [process.name for process in now.plan.processes]
    if (now.run_id, names) != (before.run_id, [each.name for each in before.plan.processes]):
        raise ConfigError(f"{logdir}: another command has changed the run meanwhile; try again")
    known = {node.name: node for node in now.plan.nodes}
    nodes = tuple(known.get(node.name, node) for node in plan.nodes)
    record = now._replace(plan=plan._replace(nodes=nodes))
    save(record, logdir)
    return record


def _listed(actors: Iterable[ProcessSpec]) -> str:
    return ", ".join(spans(process.name for process in actors))


def _new_actors(record: Record, plan: Plan) -> list[ProcessSpec]:
    """Returns the processes that only the new plan has. Raises ConfigError for any other change."""
    csv = f"--workers_csv_path={record.workers_csv_path}"
    before = {process.name: process.node for process in record.plan.processes}
    after = {process.name: process.node for process in plan.processes}
    if plan.learner_hosts != record.plan.learner_hosts:
        raise ConfigError(
            f"{csv}: the learners have changed; stop the run and launch it again, which resumes it"
            " if learner-0 is on the same machine"
        )
    for name, node in before.items():
        if after.get(name) != node:
            raise ConfigError(
                f"{csv}: {name} was on {node} and now is on {after.get(name, 'no machine')}; add "
                "rows at the end, and leave the others as they were"
            )
    return [process for process in plan.processes if process.name not in before]


def revoke(logdir: Path, host: str) -> int:
    """Shuts a machine out of a run for good, and whoever has a copy of its certificate.

    From then on, learners refuse the certificate; the run continues without the machine's actors.

    Args:
      logdir: the run's logdir, on this machine.
      host: the machine.
    """
    record = load(logdir)
    node = record.plan.machine_called(host)
    if node.is_local or record.plan.role(node) == "learner":
        raise ConfigError(f"{host}: only another machine that has no learner can be revoked")
    names = certificates.revoke(Path(record.credentials or logdir / "credentials"), node.name)
    with_learners = [
        machine for machine in record.plan.nodes if record.plan.role(machine) == "learner"
    ]
    nodes = [*with_learners, node]
    with connected(nodes, record.passwords()) as machines:
        results = on_all(
            [runner for runner in machines.reached() if runner.node != node],
            lambda runner: ask_agent(
                runner, "revoke", {"credentials": {certificates.REVOKED: names}}
            ),
        )
        reached = [runner for runner in machines.reached() if runner.node == node]
        ended = end_processes(record, reached, None, STOP_S, close=True, is_final=False)
        lines = problems(machines.found) + problems(results) + problems(ended)
    if lines:
        lines.append("the same command tries again")
    summary = f"revoked {node.name}: within {REVOKED_AFTER_S} s no learner accepts its certificate"
    return report(lines, summary)


def attach(logdir: Path, host: str) -> int:
    """Attaches this terminal to the run's tmux session on a machine, with OpenSSH."""
    record = load(logdir)
    node = record.plan.machine_called(host)
    command = ["tmux", "attach", "-t", f"={record.plan.tmux_sess}"]
    if not node.is_local:
        ssh = ["ssh", "-t"]
        ssh += ["-p", str(node.ssh_port)] if node.ssh_port else []
        ssh += ["-l", node.ssh_username] if node.ssh_username else []
        ssh += ["-i", str(Path(node.key_filename).expanduser())] if node.key_filename else []
        # Quoted: zsh would take =impala for the path of a program.
        command = [*ssh, node.ssh_host, " ".join(f"'{word}'" for word in command)]
    environment = {name: value for name, value in os.environ.items() if name != "TMUX"}
    return subprocess.run(command, env=environment).returncode


def _processes_called(plan: Plan, target: str) -> set[str]:
    """Returns the names of the processes to stop or restart; learners of a group come together."""
    names = plan.processes_called(target)
    grouped = {p.name for p in plan.processes if p.group is not None}
    return names | grouped if names & grouped else names


def report(lines: Sequence[str], done: str = "") -> int:
    """Prints what went wrong or, if nothing did, what was done; returns the exit status."""
    if lines or done:
        print(*(lines or [done]), sep="\n", file=sys.stderr if lines else sys.stdout)
    return 1 if lines else 0
