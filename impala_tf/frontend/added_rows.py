"""`add`: starts the actors of rows that were appended to the workers CSV of a run."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from impala_tf.config import ConfigError, command_line, user_commands
from impala_tf.frontend import snapshot
from impala_tf.frontend.connection import CommandRunner, ask_agent
from impala_tf.frontend.launcher import Launcher, orders_for, plan_of, secrets_here
from impala_tf.frontend.look import look
from impala_tf.frontend.operate import report
from impala_tf.frontend.parallel import connected, good, on_all, problems
from impala_tf.frontend.plan import Plan
from impala_tf.frontend.record import Record, load, save
from impala_tf.machine import certificates


def add(logdir: Path, accept_new_host_keys: bool = False) -> int:
    """Starts the actors of rows that were appended to the workers CSV since the launch.

    A new machine that is unreachable is not added to the run: its address may be wrong.

    Args:
      logdir: the run's logdir, on this machine.
      accept_new_host_keys: whether to trust machines that SSH does not know yet.
    """
    record = load(logdir)
    # In the flags, the CSV and the logdir may be relative to another folder.
    given = command_line.parse(record.flags).replace(workers_csv_path=record.workers_csv_path)
    plan, passwords = plan_of(given, sys.executable, logdir.resolve(), record.plan.nodes)
    new = _new_actors(record, plan)
    nodes = {node.name: node for node in record.plan.nodes}
    plan = snapshot.with_code(plan, snapshot.load(logdir, record.level_name).digest)
    # Machines of the run keep their ids, which are in the names of their files, and their folders.
    ids = {node.id for node in nodes.values()}
    unused = (f"node-{k}" for k in itertools.count(len(nodes)) if f"node-{k}" not in ids)
    plan = plan._replace(nodes=tuple(
        nodes.get(node.name, node if node.is_local else node._replace(id=next(unused)))
        for node in plan.nodes
    ))  # fmt: skip
    if not new:
        print("the workers CSV has no new rows")
        return 0
    launcher = Launcher(record._replace(plan=plan), logdir)
    _refuse_revoked(launcher, {process.node for process in new})
    save(launcher.record, logdir)
    nodes_of_new = plan.nodes_of([process.name for process in new])
    again = user_commands.frontend("restart", f"--logdir={logdir}", "HOST")
    names = ", ".join(process.name for process in new)
    note = f"in the run now: {names}; {again} starts those of a machine"
    with _saying(note), connected(nodes_of_new, passwords, accept_new_host_keys) as machines:
        results = on_all(machines.reached(), lambda runner: _add_on(launcher, runner))
        lines = problems(machines.found) + problems(results)
        unreached = set(machines.found) - set(good(machines.found))
    dropped = unreached - set(nodes)
    if dropped:
        save(record._replace(plan=_without(plan, dropped)), logdir)
        lines.append(
            f"the rows of {', '.join(sorted(dropped))} were not added; when they are right,"
            f" {user_commands.frontend('add', f'--logdir={logdir}')} tries again"
        )
    if problems(results) or unreached - dropped:
        lines.append(f"{again} tries a machine again")
    return report(lines, f"added {names}")


@contextlib.contextmanager
def _saying(line: str) -> Iterator[None]:
    """Prints a line if Ctrl-C ends the block."""
    try:
        yield
    except KeyboardInterrupt:
        print(line, file=sys.stderr)
        raise


def _without(plan: Plan, machines: Collection[str]) -> Plan:
    return plan._replace(
        nodes=tuple(node for node in plan.nodes if node.name not in machines),
        processes=tuple(process for process in plan.processes if process.node not in machines),
    )


def _add_on(launcher: Launcher, runner: CommandRunner) -> None:
    view = look(runner, launcher.record)
    if view.state is None:
        launcher.bring_in(runner)
    else:
        # A machine whose processes were stopped has no secrets any more.
        secrets = secrets_here(launcher.record)
        question = {"orders": orders_for(launcher.record, runner.node), "secrets": secrets}
        ask_agent(runner, "add", question, 120.0)


def _refuse_revoked(launcher: Launcher, machines: Collection[str]) -> None:
    """Raises ConfigError if rows name revoked machines, before anything of them is in the run."""
    lines = []
    for name in sorted(machines):
        folder = certificates.revoked_folder(launcher.credentials, name)
        if folder is not None:
            lines.append(
                f"--workers_csv_path={launcher.record.workers_csv_path}: {name} was revoked; take"
                f" its new rows out, or delete {folder} and launch the run again to let it in"
            )
    if lines:
        raise ConfigError(lines)


def _new_actors(record: Record, plan: Plan) -> list[Any]:
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
