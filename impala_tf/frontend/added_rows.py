"""`add`: starts the actors of rows that were appended to the workers CSV of a run."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from impala_tf.config import ConfigError, command_line, user_commands
from impala_tf.frontend import overview, snapshot
from impala_tf.frontend.connection import CommandRunner, ask_agent
from impala_tf.frontend.launcher import Launcher, orders_for, plan_of, secrets_here
from impala_tf.frontend.look import look
from impala_tf.frontend.node.state import ProcessSpec
from impala_tf.frontend.operate import report
from impala_tf.frontend.parallel import connected, good, on_all, problems
from impala_tf.frontend.plan import NodeSpec, Plan
from impala_tf.frontend.record import Record, load, save


def add(logdir: Path, accept_new_host_keys: bool = False) -> int:
    """Starts the actors of rows that were appended to the workers CSV since the launch.

    If one of their machines cannot be reached, or was revoked, no row is added: its address may be
    wrong, and without it, the actors after it would have other numbers.

    Args:
      logdir: the run's logdir, on this machine.
      accept_new_host_keys: whether to trust machines that SSH does not know yet.
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
    plan = snapshot.with_code(plan, snapshot.load(logdir).digest)
    plan = plan._replace(nodes=_with_ids(plan.nodes, record.plan.nodes))
    nodes = plan.nodes_of([process.name for process in new])
    with connected(nodes, passwords, accept_new_host_keys) as machines:
        refused = on_all(machines.reached(), launcher.refuse_revoked)
        if lines := problems(machines.found) + problems(refused):
            again = user_commands.frontend("add", f"--logdir={logdir}")
            lines.append(
                f"no row was added; correct the rows or take them out: then, {again} tries again"
            )
            return report(lines)
        launcher.record = _with_actors(logdir, record, plan)
        listed = _listed(new)
        with _saying(f"in the run now: {listed}; {_restart(logdir)} starts those of a machine"):
            results = on_all(machines.reached(), lambda runner: _add_on(launcher, runner))
    lines = problems(results)
    if started := [process for process in new if process.node in good(results)]:
        print(f"added {_listed(started)}")
    if waiting := [process for process in new if process.node not in good(results)]:
        lines.append(f"in the run, but not started: {_listed(waiting)}; {_restart(logdir)} tries a"
                     " machine again")  # fmt: skip
    return report(lines)


def _with_ids(nodes: Iterable[NodeSpec], known: Collection[NodeSpec]) -> tuple[NodeSpec, ...]:
    """Returns the nodes; those that are known are unchanged, the others get ids of their own.

    Machines of the run keep their ids, which are in the names of their files, and their folders.
    """
    named, ids = {node.name: node for node in known}, {node.id for node in known}
    unused = (f"node-{k}" for k in itertools.count(len(ids)) if f"node-{k}" not in ids)
    return tuple(
        named.get(node.name, node if node.is_local else node._replace(id=next(unused)))
        for node in nodes
    )


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
    return ", ".join(overview.spans(process.name for process in actors))


def _restart(logdir: Path) -> str:
    return user_commands.frontend("restart", f"--logdir={logdir}", "HOST")


@contextlib.contextmanager
def _saying(line: str) -> Iterator[None]:
    """Prints a line if Ctrl-C ends the block."""
    try:
        yield
    except KeyboardInterrupt:
        print(line, file=sys.stderr)
        raise


def _add_on(launcher: Launcher, runner: CommandRunner) -> None:
    view = look(runner, launcher.record)
    if view.state is None:
        launcher.bring_in(runner)
    else:
        # A machine whose processes were stopped has no secrets any more.
        secrets = secrets_here(launcher.record)
        question = {"orders": orders_for(launcher.record, runner.node), "secrets": secrets}
        ask_agent(runner, "add", question, 120.0)


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
