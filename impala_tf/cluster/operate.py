"""What looks after a launched run: `stop`, `restart`, `add`, `revoke`, `logs` and `attach`.

The logdir is the run's on this machine; a target is a process, or a machine with all of its own.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from impala_tf.cluster import code
from impala_tf.cluster.launch import (
    STOP_S,
    Answer,
    Launcher,
    end_processes,
    secrets_here,
)
from impala_tf.cluster.machines import connected, good, on_all, problems
from impala_tf.cluster.node.plain import to_plain
from impala_tf.cluster.node.state import ProcessSpec, log_path, supervisor_log
from impala_tf.cluster.plan import NodeSpec, Plan, plan_of, spans
from impala_tf.cluster.record import Record, claimed, load, save
from impala_tf.cluster.runner import ClusterError, CommandRunner, ask_agent
from impala_tf.cluster.status import look
from impala_tf.config import ConfigError, command_line, user_commands
from impala_tf.machine import certificates
from impala_tf.machine.node import is_learner
from impala_tf.machine.supervision import ENDED_AS_TOLD, describe
from impala_tf.printable import log_printer

MAY_BE_LOST = "what was learned since the last checkpoint may be lost"
REVOKED_AFTER_S = 5
"""Longer than `impala_tf.transport.credentials.READ_AGAIN_S`, after which learners know."""
_SUPERVISOR = "supervisor"
_RECENT_BYTES = 20_000
_AGENT_S = 120.0


def report(lines: Sequence[str], done: str = "") -> int:
    """Prints what went wrong or, if nothing did, what was done; returns the exit status."""
    if lines or done:
        print(*(lines or [done]), sep="\n", file=sys.stderr if lines else sys.stdout)
    return 1 if lines else 0


# --- stop ---


def stop(logdir: Path, target: str | None = None, timeout_s: float = STOP_S) -> int:
    """Stops the processes of a run, and nothing else: learners first, those of a group together.

    Args:
      logdir: the run's.
      target: what to stop. Default: all processes.
      timeout_s: how long to wait for the learners, and then for all processes.

    Returns:
      1 if a process still runs or had to be killed, a learner may not have saved what it has
      learned, or a machine is unreachable, else 0.
    """
    record = load(logdir)
    plan = record.plan
    names = None if target is None else _processes_called(plan, target)
    nodes = plan.nodes if names is None else plan.nodes_of(names)
    learners = [p.name for p in plan.processes if p.is_learner and p.name in (names or {p.name})]
    with connected(nodes, record.passwords()) as machines:
        runners = machines.reached()
        of_learners = [r for r in runners if learners and plan.role(r.node) == "learner"]
        first = end_processes(record, of_learners, learners, timeout_s, close=False)
        then = end_processes(record, runners, names, timeout_s)
    lines = problems(machines.found)
    for name, answer in good(first).items():
        if not isinstance(last := then[name], ClusterError):
            then[name] = {**last, "stopped": {**answer["stopped"], **last["stopped"]}}
    lines += bad_ends(then, logdir)
    if away := [n for n, r in {**machines.found, **then}.items() if isinstance(r, ClusterError)]:
        lines.append(f"{', '.join(away)}: processes may still run there; stop the run again")
    if names is not None:
        again = user_commands.frontend("restart", f"--logdir={logdir}", str(target))
        return report(lines, f"stopped {', '.join(sorted(names))}; {again} starts them again")
    has_run = any(each["stopped"] for each in good(then).values())
    done = "stopped: no process of the run is left" if has_run else "nothing was running"
    return report(lines, f"{done} on {len(plan.nodes)} machine(s)")


def _processes_called(plan: Plan, target: str) -> set[str]:
    """Returns the names of the processes to stop or restart; learners of a group come together."""
    names = plan.processes_called(target)
    grouped = {process.name for process in plan.processes if process.group is not None}
    return names | grouped if names & grouped else names


def bad_ends(answers: Mapping[str, Answer | ClusterError], logdir: Path) -> list[str]:
    """Returns one line for each process that `end_processes` could not stop, or that ended badly.

    That is a learner which may not have saved, and an actor which had to be killed.
    """
    lines = problems(answers)
    for host, answer in good(answers).items():
        for name, pid in answer["left"].items():
            lines.append(f"{host}: {name} is still running (pid {pid})")
        for name, status in answer["stopped"].items():
            if is_learner(name) and (status is None or status not in ENDED_AS_TOLD):
                # None: its supervisor was dead, or could not write it to a full disk.
                how = "how it ended is not known" if status is None else describe(status)
                logs = user_commands.frontend("logs", f"--logdir={logdir}", name)
                lines.append(f"{host}: {name}: {how}; {MAY_BE_LOST}; see {logs}")
            elif status == -signal.SIGKILL:
                lines.append(f"{host}: {name} did not stop in time and was killed")
    return lines


# --- restart and add ---


def restart(logdir: Path, target: str) -> int:
    """Restarts a process, or all processes of a machine, even one that joins the run late.

    Learners of a group restart together.
    """
    record = load(logdir)
    names = _processes_called(record.plan, target)
    launcher = Launcher(record, logdir)
    with connected(record.plan.nodes_of(names), record.passwords()) as machines:
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
    processes = record.plan.on(runner.node)
    question = {
        "processes": to_plain(processes),
        "names": sorted({process.name for process in processes} & set(names)),
        # A machine whose processes were stopped has no secrets any more.
        "secrets": secrets_here(record),
    }
    ask_agent(runner, "restart", question, _AGENT_S)


def add(logdir: Path) -> int:
    """Starts the actors of rows that were appended to the workers CSV since the launch.

    If one of their machines cannot be reached, or was revoked, no row is added: its address may be
    wrong, and without it, the actors after it would have other numbers.
    """
    with claimed(logdir) as is_alone:
        if not is_alone:
            raise ClusterError(f"--logdir={logdir}: another command is changing the run; try again")
        record = load(logdir)
        # In the flags, the CSV and the logdir may be relative to another folder.
        given = command_line.parse(record.flags).replace(workers_csv_path=record.workers_csv_path)
        plan, passwords = plan_of(given, sys.executable, logdir.resolve())
        known = {node.name: node for node in record.plan.nodes}
        nodes = tuple(known.get(node.name, node) for node in plan.nodes)
        plan = code.with_code(plan._replace(nodes=nodes), record.code)
        if not (new := _new_actors(record, plan)):
            print("the workers CSV has no new rows")
            return 0
        launcher = Launcher(record._replace(plan=plan), logdir)
        with connected(plan.nodes_of([each.name for each in new]), passwords) as machines:
            refused = on_all(machines.reached(), launcher.refuse_revoked)
            if lines := problems(machines.found) + problems(refused):
                return report([*lines, "no row was added; correct the rows, and try again"])
            save(launcher.record, logdir)
            names = [process.name for process in new]
            results = on_all(
                machines.reached(), lambda runner: _start_again(launcher, runner, names)
            )
    if started := [process.name for process in new if process.node in good(results)]:
        print(f"added {', '.join(spans(started))}")
    again = user_commands.frontend("restart", f"--logdir={logdir}", "HOST")
    return report([*problems(results), *([f"{again} tries again"] if problems(results) else [])])


def _new_actors(record: Record, plan: Plan) -> list[ProcessSpec]:
    """Returns the processes that only the new plan has. Raises ConfigError for any other change."""
    csv = f"--workers_csv_path={record.workers_csv_path}"
    before = {process.name: process.node for process in record.plan.processes}
    after = {process.name: process.node for process in plan.processes}
    if plan.learner_hosts != record.plan.learner_hosts:
        raise ConfigError(f"{csv}: the learners have changed; stop the run and launch it again")
    for name, node in before.items():
        if after.get(name) != node:
            raise ConfigError(
                f"{csv}: {name} was on {node} and now is on {after.get(name, 'no machine')}; add "
                "rows at the end, and leave the others as they were"
            )
    return [process for process in plan.processes if process.name not in before]


# --- revoke, logs and attach ---


def revoke(logdir: Path, host: str) -> int:
    """Shuts a machine out of a run for good, and whoever has a copy of its certificate.

    From then on, learners refuse the certificate; the run continues without the machine's actors.
    """
    record = load(logdir)
    node = record.plan.machine_called(host)
    if node.is_local or record.plan.role(node) == "learner":
        raise ConfigError(f"{host}: only another machine that has no learner can be revoked")
    names = certificates.revoke(Path(record.credentials or logdir / "credentials"), node.name)
    news = {"credentials": {certificates.REVOKED: names}}
    learners = [each for each in record.plan.nodes if record.plan.role(each) == "learner"]
    with connected([*learners, node], record.passwords()) as machines:
        told = [runner for runner in machines.reached() if runner.name != node.name]
        shut_out = [runner for runner in machines.reached() if runner.name == node.name]
        results = on_all(told, lambda runner: ask_agent(runner, "revoke", news))
        ended = end_processes(record, shut_out, is_final=False)
        lines = problems(machines.found) + problems(results) + problems(ended)
    done = f"revoked {host}: within {REVOKED_AFTER_S} s no learner accepts its certificate"
    return report([*lines, "the same command tries again"] if lines else [], done)


def follow_log(logdir: Path, name: str, follow: bool, host: str | None = None) -> int:
    """Prints the end of a log, and with `follow` also what is added until Ctrl-C.

    Args:
      logdir: the run's.
      name: a process, or "supervisor".
      follow: whether to go on.
      host: the machine whose supervisor is meant, if there are several.
    """
    record, show = load(logdir), log_printer()
    node = _machine_with(record.plan, name, host)
    is_supervisor = name == _SUPERVISOR
    log = supervisor_log(node.logdir, node.id) if is_supervisor else log_path(node.logdir, name)
    command = ["tail", "-c", str(_RECENT_BYTES), *(["-F"] if follow else []), "--", str(log)]
    with connected([], record.passwords()) as machines:
        runner = machines.runner(node)
        if follow:
            running = runner.start(command)
            for line in running.output:
                show(line)
            running.finish()  # which fails if the connection was lost
            return 0
        done = runner.run(command)
    if done.status != 0:
        raise ClusterError(f"{node.name}: {log}: no output yet")
    show(done.stdout)
    return 0


def _machine_with(plan: Plan, name: str, host: str | None) -> NodeSpec:
    """Returns the machine that has a log. Raises ConfigError if there is none, or are several."""
    if name != _SUPERVISOR:
        if host is not None or not (nodes := plan.nodes_of([name])):
            raise ConfigError(f"{name if host is None else host}: no such process")
        return nodes[0]
    if host is None and len(plan.nodes) > 1:
        machines = ", ".join(node.name for node in plan.nodes)
        raise ConfigError(f"{_SUPERVISOR}: each machine has one; add one of {machines}")
    return plan.machine_called(host or plan.nodes[0].name)


def attach(logdir: Path, host: str) -> int:
    """Attaches this terminal to the run's tmux session on a machine, with OpenSSH."""
    record = load(logdir)
    node = record.plan.machine_called(host)
    command = ["tmux", "attach", "-t", f"={record.plan.tmux_sess}"]
    if not node.is_local:
        # Quoted: zsh would take =impala for the path of a program.
        there = " ".join(f"'{word}'" for word in command)
        command = ["ssh", "-t", *node.ssh_options(), "--", node.ssh_host, there]
    environment = {name: value for name, value in os.environ.items() if name != "TMUX"}
    return subprocess.run(command, env=environment).returncode
