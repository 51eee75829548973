"""Launches a run on the machines of a workers CSV."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Container, Mapping
from pathlib import Path
from typing import Any

from impala_tf.config import ConfigError, Given, command_line, user_commands
from impala_tf.frontend import code
from impala_tf.frontend.claims import claimed, name_of
from impala_tf.frontend.launcher import (
    Checked,
    Launcher,
    claimed_start,
    new_record,
    refuse_to_begin_again,
)
from impala_tf.frontend.machines import Machines, connected, good, on_all, problems
from impala_tf.frontend.monitor import MakeDisplay, Monitor, where_it_runs
from impala_tf.frontend.node.state import CANCELLED
from impala_tf.frontend.operate import end
from impala_tf.frontend.plan import Plan, plan_of, warnings
from impala_tf.frontend.record import Record, load
from impala_tf.frontend.runner import ClusterError, CommandRunner, ask_agent
from impala_tf.logdir import moved_aside
from impala_tf.machine import certificates

Differences = Callable[[Mapping[str, Any], str], list[str]]
"""Takes "flags" and "sources" of a run, and its logdir; returns lines if it is another run."""


def launch(
    given: Given, *, make_display: MakeDisplay, differences: Differences = lambda run, logdir: []
) -> int:
    """Launches a run and, without --detach, shows it until it ends. Ctrl-C leaves it running.

    Args:
      given: the run's flags, with `workers_csv_path` and `logdir`.
      make_display: makes a display. Its argument returns the newest status, or None if there is
        none yet.
      differences: compares this run with the one in its logdir.

    Returns:
      0 if all learners finished or were stopped, or the run was left running. 1 if a machine that
      is needed cannot be used, or the logdir or tmux session is in use (standard error has one line
      per problem); or if a learner failed or may not have saved what it has learned (the display's
      final line says so).

    Raises:
      ConfigError: the workers CSV cannot be used, or the logdir holds another run. Nothing was
        started, and no connection was opened for a bad CSV.
    """
    plan, passwords = plan_of(given, sys.executable)
    check_secrets(given)
    logdir = Path(given["logdir"]).resolve()
    for line in warnings(plan):
        print(line, file=sys.stderr)
    archive = code.pack(code.own_names(given))
    plan = code.with_code(plan, code.digest(archive))
    try:
        with contextlib.ExitStack() as starting, contextlib.ExitStack() as connection:
            # If two launches went on, the record of one would replace that of the other, whose run
            # could then not be stopped.
            if not starting.enter_context(claimed(f"launch into {name_of(logdir)}")):
                raise ClusterError(f"--logdir={logdir}: another launch is starting there now")
            machines = connection.enter_context(connected(plan.nodes, passwords))
            launcher = Launcher(new_record(plan, given.without("fresh")), logdir, archive)
            _check_and_start(given, launcher, machines, logdir, differences)
            starting.close()
            if given.cluster.detach:
                print(f"started {where_it_runs(launcher.record, machines, logdir)}")
                return 0
            return Monitor(launcher, machines, logdir, make_display).run()
    except ClusterError as error:
        print(*error.problems, sep="\n", file=sys.stderr)
        return 1


def _check_and_start(
    given: Given, launcher: Launcher, machines: Machines, logdir: Path, differences: Differences
) -> None:
    try:
        last = load(logdir)
    except ConfigError:
        last = None  # the first launch, or a damaged record
    checked = _check(given, launcher, machines)
    if given["fresh"]:
        _set_aside(machines, checked, logdir)
    else:
        first = checked.get(launcher.record.first_learner().name)  # it has the checkpoints
        if first is not None and (lines := differences(first.run, first.logdir)):
            raise ConfigError(lines)
        if last is not None:
            _refuse_lost_checkpoints(given, launcher, checked, last)
    certificates.ensure(launcher.credentials, keep_authority=True)
    with claimed_start(launcher.record):
        launcher.remember(checked)
        _start(given.without("fresh"), launcher, machines, logdir)
        launcher.remember({}, has_started=True)


def check_secrets(given: Given) -> None:
    """Raises ConfigError if a variable of --secret is not set here."""
    if missing := [name for name in given.cluster.secret if name not in os.environ]:
        raise ConfigError([f"--secret={name}: not set in this shell; export it first"
                           for name in missing])  # fmt: skip


def _refuse_lost_checkpoints(
    given: Given, launcher: Launcher, checked: Mapping[str, Checked], written: Record
) -> None:
    """Raises ConfigError if an earlier launch may have made checkpoints that learner 0 lacks."""
    launcher.record = launcher.record._replace(has_started=written.has_started)
    before, now = written.first_learner(), launcher.record.first_learner()
    first = checked.get(now.name)
    if first is None or first.run:
        return
    if given["mirror"] and command_line.parse(written.flags)["mirror"] == given["mirror"]:
        return  # the mirror has the checkpoints
    if now.name == before.name:
        refuse_to_begin_again(launcher.record, first)
        return
    raise ConfigError(
        f"--workers_csv_path={launcher.record.workers_csv_path}: learner-0 was on {before.name},"
        f" which may have the run's checkpoints, and now is on {now.name}; make {before.name} the"
        f" first learner again, copy the run's logdir from there to {first.logdir} on {now.name},"
        " or give --fresh to start from frame 0"
    )


def _set_aside(machines: Machines, checked: Mapping[str, Checked], logdir: Path) -> None:
    """Moves an earlier run's files aside in all logdirs, here and on the machines."""

    def set_aside(runner: CommandRunner) -> str:
        question = {"logdir": checked[runner.node.name].logdir}
        return str(ask_agent(runner, "set_aside", question)["moved"])

    moved = on_all(machines.reached(), set_aside)
    if failed := problems(moved):
        raise ClusterError(failed)
    for name, target in good(moved).items():
        if target:
            print(f"{name}: the run that was there is now in {target}", file=sys.stderr)
    if local_target := moved_aside(logdir):
        print(f"here: the run that was in {logdir} is now in {local_target}", file=sys.stderr)


def _check(given: Given, launcher: Launcher, machines: Machines) -> dict[str, Checked]:
    results = on_all(machines.reached(), launcher.check)
    failed = {n: result for n, result in results.items() if isinstance(result, ClusterError)}
    _require_enough(given, launcher.record.plan, {**machines.found, **failed})
    machines.found.update(failed)
    plan = launcher.record.plan
    for name, error in machines.found.items():
        if isinstance(error, ClusterError):
            learners = [p.name for p in plan.on(plan.node(name)) if p.is_learner]
            without = ", ".join(learners) or "it"
            print(f"{'; '.join(error.problems)}; the run starts without {without}", file=sys.stderr)
    return good(results)


def _start(given: Given, launcher: Launcher, machines: Machines, logdir: Path) -> None:
    try:
        results = on_all(machines.reached(), launcher.start)
        failed = {n: result for n, result in results.items() if isinstance(result, ClusterError)}
        if any(CANCELLED in line for line in problems(failed)):
            raise ClusterError("the launch was stopped; launch the run again, which resumes it")
        _require_enough(given, launcher.record.plan, {**machines.found, **failed})
        machines.found.update(failed)
        for line in problems(failed):
            print(f"{line}; the run started without it", file=sys.stderr)
    except BaseException:
        print("stopping what has been started ...", file=sys.stderr, flush=True)
        stop = user_commands.frontend("stop", f"--logdir={logdir}")
        if lines := _take_back(launcher, machines, logdir):
            print(*lines, f"{stop} stops what still runs there", sep="\n", file=sys.stderr)
        raise


def _take_back(launcher: Launcher, machines: Machines, logdir: Path) -> list[str]:
    """Stops what a launch has started; returns lines about what may still run."""
    try:
        # After Ctrl-C, threads may still be starting processes.
        lines = problems(on_all(machines.reached(), launcher.cancel))
        # Without --end_command, which may switch machines off: the run has hardly begun.
        return lines + end(launcher.record, machines, logdir, is_final=False).lines
    except KeyboardInterrupt:
        return ["interrupted: some processes may still run, or start later"]


def _require_enough(given: Given, plan: Plan, results: Mapping[str, object]) -> None:
    """Raises ClusterError unless enough machines can be used to start the run."""
    lost = {name: result for name, result in results.items() if isinstance(result, ClusterError)}
    if not lost:
        return
    hint = _too_few_learners(given, plan, lost)
    if hint is None:
        actors = sum(not p.is_learner and p.node not in lost for p in plan.processes)
        if given.cluster.min_actors is not None and actors >= given.cluster.min_actors:
            return
        if actors:
            hint = (f"{actors} actor(s) could start: --min_actors={actors} starts them "
                    "without the other machines, which join later")  # fmt: skip
    raise ClusterError([*problems(lost), *([hint] if hint else [])])


def _too_few_learners(given: Given, plan: Plan, lost: Container[str]) -> str | None:
    """Returns why a run cannot start without lost learners, '' if that is obvious; None: it can."""
    learners = [process for process in plan.processes if process.is_learner]
    available = [process for process in learners if process.node not in lost]
    fewest = given.cluster.min_learners
    if available == learners:
        return None
    if fewest is None:
        return ""
    if learners[0] not in available:
        text = "learner-0 is needed, because its machine has the run's checkpoints"
        return f"--min_learners={fewest}: {text}"
    if len(available) < fewest:
        return f"--min_learners={fewest}: only {len(available)} can be reached"
    return None
