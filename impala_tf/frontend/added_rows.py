"""`add`: starts the actors of rows that were appended to the workers CSV of a run."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

from impala_tf.config import ConfigError, command_line, user_commands
from impala_tf.frontend import overview, snapshot
from impala_tf.frontend.connection import CommandRunner, ask_agent
from impala_tf.frontend.errors import ClusterError
from impala_tf.frontend.launcher import Launcher, orders_for, plan_of, secrets_here
from impala_tf.frontend.look import look
from impala_tf.frontend.node.state import ProcessSpec
from impala_tf.frontend.operate import report
from impala_tf.frontend.parallel import Machines, connected, good, on_all, problems
from impala_tf.frontend.plan import NodeSpec, Plan
from impala_tf.frontend.record import Record, load, save
from impala_tf.machine import certificates


def add(logdir: Path, accept_new_host_keys: bool = False) -> int:
    """Starts the actors of rows that were appended to the workers CSV since the launch.

    A new machine that is unreachable is not added to the run: its address may be wrong. Nor are the
    rows after it: without it, their actors would have other numbers.

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
    _refuse_revoked(launcher, {process.node for process in new})
    plan = snapshot.with_code(plan, snapshot.load(logdir).digest)
    plan = plan._replace(nodes=_with_ids(plan.nodes, record.plan.nodes))
    nodes = plan.nodes_of([process.name for process in new])
    with connected(nodes, passwords, accept_new_host_keys) as machines:
        unreached = set(machines.found) - set(good(machines.found))
        dropped = unreached - {node.name for node in record.plan.nodes}
        kept = list(itertools.takewhile(lambda process: process.node not in dropped, new))
        launcher.record = _with_actors(logdir, record, plan, kept)
        results = _start(launcher, machines, logdir, kept)
        lines = problems(machines.found) + problems(results)
    started = [process.name for process in kept if process.node in good(results)]
    if started:
        print(f"added {_listed(started)}")
    if waiting := [process.name for process in kept if process.name not in started]:
        lines.append(f"in the run, but not started: {_listed(waiting)}; {_restart(logdir)} tries a"
                     " machine again")  # fmt: skip
    if dropped:
        lines.append(_left_out(dropped, new[len(kept) :], logdir))
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


def _with_actors(logdir: Path, before: Record, plan: Plan, actors: Sequence[ProcessSpec]) -> Record:
    """Adds actors to the run's record, and their machines.

    Args:
      logdir: the run's logdir, on this machine.
      before: the record when the new rows were read.
      plan: of all rows.
      actors: the first of the plan's new actors.

    Raises:
      ConfigError: another command has added rows, or has launched a run there.
    """
    # Logging in takes long; meanwhile, machines of the run may have told an attached launcher their
    # folders.
    now = load(logdir)
    names = [process.name for process in now.plan.processes]
    if (now.run_id, names) != (before.run_id, [each.name for each in before.plan.processes]):
        raise ConfigError(f"{logdir}: another command has changed the run meanwhile; try again")
    if not actors:
        return now
    known = {node.name: node for node in now.plan.nodes}
    machines = {*known, *(process.node for process in actors)}
    nodes = tuple(known.get(node.name, node) for node in plan.nodes if node.name in machines)
    processes = plan.processes
    if len(names) + len(actors) < len(processes):  # their flags count actors that are not there
        processes = (*now.plan.processes, *actors)
    record = now._replace(plan=plan._replace(nodes=nodes, processes=processes))
    save(record, logdir)
    return record


def _start(
    launcher: Launcher, machines: Machines, logdir: Path, actors: Sequence[ProcessSpec]
) -> dict[str, None | ClusterError]:
    names = {process.node for process in actors}
    if not names:
        return {}
    listed = _listed([process.name for process in actors])
    note = f"in the run now: {listed}; {_restart(logdir)} starts those of a machine"
    with _saying(note):
        runners = [runner for runner in machines.reached() if runner.node.name in names]
        return on_all(runners, lambda runner: _add_on(launcher, runner))


def _listed(names: Iterable[str]) -> str:
    return ", ".join(overview.spans(names))


def _restart(logdir: Path) -> str:
    return user_commands.frontend("restart", f"--logdir={logdir}", "HOST")


def _left_out(machines: Collection[str], actors: Sequence[ProcessSpec], logdir: Path) -> str:
    """Returns what to do about unreachable machines, and the rows from the first of them on."""
    names, after = ", ".join(sorted(machines)), ""
    if others := [process.name for process in actors if process.node not in machines]:
        after = f", nor rows after them ({_listed(others)})"
    again = user_commands.frontend("add", f"--logdir={logdir}")
    return (
        f"the rows of {names} were not added{after}; correct them, take them out, or move them to"
        f" the end of the CSV: then, {again} tries again"
    )


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
