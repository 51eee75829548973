"""Changes to a launched run: `stop`, `restart`, `revoke`; `add` is in `added_rows`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from impala_tf.config import ConfigError, user_commands
from impala_tf.frontend import overview
from impala_tf.frontend.connection import CommandRunner, ask_agent
from impala_tf.frontend.ending import (
    STOP_S,
    end,
    end_processes,
    left_running,
    lost_work,
    may_still_run,
)
from impala_tf.frontend.errors import ClusterError
from impala_tf.frontend.launcher import (
    Launcher,
    claimed_launch,
    claimed_start,
    orders_for,
    secrets_here,
)
from impala_tf.frontend.look import look
from impala_tf.frontend.parallel import Machines, connected, on_all, problems
from impala_tf.frontend.plan import Plan
from impala_tf.frontend.record import Record, load
from impala_tf.machine import certificates

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
