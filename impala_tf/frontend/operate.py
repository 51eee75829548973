"""Changes to a launched run: `stop`, and what it lost; `restart` and `revoke`."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from impala_tf.config import ConfigError, user_commands
from impala_tf.frontend import overview
from impala_tf.frontend.connection import CommandRunner, ask_agent
from impala_tf.frontend.errors import ClusterError
from impala_tf.frontend.launcher import (
    Launcher,
    claimed_launch,
    claimed_start,
    orders_for,
    secrets_here,
)
from impala_tf.frontend.look import look
from impala_tf.frontend.parallel import Machines, connected, good, on_all, problems
from impala_tf.frontend.plan import Plan
from impala_tf.frontend.record import Record, load
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
    accept_new_host_keys: bool = False,
) -> int:
    """Stops the processes of a run, and nothing else.

    Learners of a group stop together. A launch that is starting the run's processes starts no more
    of them; a launch that is still checking machines continues.

    Args:
      logdir: the run's logdir, on this machine.
      target: a process, or a machine, which means all of its processes. Default: all processes.
      timeout_s: how long to wait for the learners, and then for all processes.
      accept_new_host_keys: whether to trust machines that SSH does not know yet.

    Returns:
      1 if a process still runs or had to be killed, a learner may not have saved what it has
      learned, a machine is unreachable, or a launch continues, else 0.
    """
    try:
        record = load(logdir)
    except ConfigError:
        if early := _early_launch(logdir):
            return report([early])
        raise
    names = None if target is None else _processes_called(record.plan, target)
    nodes = record.plan.nodes if names is None else record.plan.nodes_of(names)
    with connected(nodes, record.passwords(), accept_new_host_keys) as machines:
        if names is not None:
            again = user_commands.frontend("restart", f"--logdir={logdir}", str(target))
            hint = f"{again} starts them again"
            return _stop_some(record, machines, logdir, timeout_s, names, hint)
        cancelled = _cancel_launch(record, machines, logdir)
        ended = end(record, machines, logdir, timeout_s)
        lines = problems(machines.found) + problems(cancelled) + ended.lines + ended.lost
    if not cancelled and (early := _early_launch(logdir)):
        lines.append(early)
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


def _early_launch(logdir: Path) -> str:
    """Returns a line if a launch into the folder is still checking its machines, else ''."""
    with claimed_launch(logdir) as is_over:
        if is_over:
            return ""
    return (
        f"a launch into {logdir} is still checking its machines; end it with Ctrl-C there, or try"
        " again when it starts the run"
    )


def _stop_some(
    record: Record,
    machines: Machines,
    logdir: Path,
    timeout_s: float,
    names: set[str],
    hint: str,
) -> int:
    answers = end_processes(record, machines.reached(), sorted(names), timeout_s, close=True)
    lines = problems(machines.found) + left_running(answers) + lost_work(answers, logdir)
    lines += may_still_run({**machines.found, **answers})
    return report(lines, f"stopped {', '.join(sorted(names))}; {hint}")


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
) -> Ended:
    """Stops the processes of a run, learners first. Closes tmux windows where no process is left.

    Args:
      record: the run's record.
      machines: the run's machines.
      logdir: the run's logdir, on this machine.
      timeout_s: how long to wait for the learners, and then for all processes.
      is_final: whether the machines then run --end_command.
    """
    plan = record.plan
    with_learners = [r for r in machines.reached() if plan.role(r.node) == "learner"]
    learners = [process.name for process in plan.processes if process.is_learner]
    first = end_processes(record, with_learners, learners, timeout_s, False, is_final)
    then = end_processes(record, machines.reached(), None, timeout_s, True, is_final)
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
    names: Sequence[str] | None,
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


def restart(logdir: Path, target: str, accept_new_host_keys: bool = False) -> int:
    """Restarts a process, or all processes of a machine, even one that joins the run late.

    Learners of a group restart together.

    Args:
      logdir: the run's logdir, on this machine.
      target: a process, or a machine, which means all of its processes.
      accept_new_host_keys: whether to trust machines that SSH does not know yet.
    """
    record = load(logdir)
    names = _processes_called(record.plan, target)
    launcher = Launcher(record, logdir)
    nodes = record.plan.nodes_of(names)
    with connected(nodes, record.passwords(), accept_new_host_keys) as machines:

        def restart_on(runner: CommandRunner) -> None:
            state = look(runner, record).state
            if state is None:
                launcher.bring_in(runner)
                return
            launcher.refuse_revoked(runner)
            chosen = {p.name for p in record.plan.on(runner.node) if p.name in names}
            if new := chosen - state.processes.keys():  # `add` was interrupted, or did not reach it
                orders = orders_for(record, runner.node)
                question = {"orders": orders, "names": sorted(new), "secrets": secrets_here(record)}
                ask_agent(runner, "add", question, 120.0)
            if present := sorted(chosen - new):
                question = {"names": present, "secrets": secrets_here(record)}
                ask_agent(runner, "restart", question, 120.0)

        results = on_all(machines.reached(), restart_on)
        lines = problems(machines.found) + problems(results)
    return report(lines, f"restarted {', '.join(sorted(names))}")


def revoke(logdir: Path, host: str, accept_new_host_keys: bool = False) -> int:
    """Shuts a machine out of a run for good, and whoever has a copy of its certificate.

    From then on, learners refuse the certificate; the run continues without the machine's actors.

    Args:
      logdir: the run's logdir, on this machine.
      host: the machine.
      accept_new_host_keys: whether to trust machines that SSH does not know yet.
    """
    record = load(logdir)
    node = overview.machine_called(record.plan, host)
    if node.is_local or record.plan.role(node) == "learner":
        raise ConfigError(f"{host}: only another machine that has no learner can be revoked")
    names = certificates.revoke(Path(record.credentials or logdir / "credentials"), node.name)
    with_learners = [
        machine for machine in record.plan.nodes if record.plan.role(machine) == "learner"
    ]
    nodes = [*with_learners, node]
    with connected(nodes, record.passwords(), accept_new_host_keys) as machines:
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


def _processes_called(plan: Plan, target: str) -> set[str]:
    """Returns the names of the processes to stop or restart; learners of a group come together."""
    names = overview.processes_called(plan, target)
    grouped = {p.name for p in plan.processes if p.group is not None}
    return names | grouped if names & grouped else names


def report(lines: Sequence[str], done: str = "") -> int:
    """Prints what went wrong or, if nothing did, what was done; returns the exit status."""
    if lines or done:
        print(*(lines or [done]), sep="\n", file=sys.stderr if lines else sys.stdout)
    return 1 if lines else 0
