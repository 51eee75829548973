"""Launches a run on the machines of a workers CSV."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from frontend.errors import ClusterError
from frontend.inventory import Row
from frontend.launcher import Checked, Launcher, end, new_record, plan_of, plan_of_rows
from frontend.monitor import MakeDisplay, Monitor, where_it_runs
from frontend.parallel import Machines, connected, good, on_all, problems
from frontend.plan import Plan, default_logdir
from impala_tf.config import Config


def launch(
    config: Config, *, make_credentials: Callable[[Path], None], make_display: MakeDisplay
) -> int:
    """Launches a run and, without --detach, shows it until it ends. Ctrl-C leaves it running.

    Args:
      config: every flag; `workers_csv_path` is set. `logdir` defaults to runs/LEVEL-AGENT.
      make_credentials: creates the run's certificates in a folder, unless they are there already.
      make_display: makes a display. Its argument returns the newest status, or None if there is
        none yet.

    Returns:
      0: all learners finished or were stopped, or the run was left running. 1: a machine that is
      needed cannot be used, or the logdir or tmux session is in use (standard error has one line
      per problem), or a learner failed or another launch took over the logdir (the display's final
      line says so).

    Raises:
      ConfigError: if the workers CSV is unusable; no connection has been opened.
    """
    plan, passwords, rows = plan_of(config, sys.executable)
    logdir = Path(default_logdir(config)).resolve()
    credentials = Path(config.process.credentials or logdir / "credentials")
    try:
        with connected(plan.nodes, passwords, config.cluster.accept_new_host_keys) as machines:
            plan = _with_those_who_are_there(config, plan, rows, machines)
            launcher = Launcher(new_record(plan, config), credentials, logdir)
            checked = _check(config, launcher, machines)
            make_credentials(credentials)
            launcher.remember(checked)
            _start(config, launcher, machines)
            if config.cluster.detach:
                print(f"started {where_it_runs(launcher.record, logdir)}")
                return 0
            return Monitor(launcher, machines, logdir, make_display).run()
    except ClusterError as error:
        print(*error.problems, sep="\n", file=sys.stderr)
        return 1


def _with_those_who_are_there(
    config: Config, plan: Plan, rows: list[Row], machines: Machines
) -> Plan:
    """Returns the plan without the learners of machines that cannot be reached, if it may.

    Their actors stay in the plan: they can join later. A group of learners cannot grow.
    """
    lost = {name for name, each in machines.found.items() if isinstance(each, ClusterError)}
    missing = [process for process in plan.processes if process.is_learner and process.node in lost]
    if not missing or config.cluster.min_learners is None:
        return plan
    places = iter(process.node for process in plan.processes if process.is_learner)
    kept = [row for row in rows if row.job == "actor" or next(places) not in lost]
    present = sum(row.job == "learner" for row in kept)
    if present < max(1, config.cluster.min_learners):
        raise ClusterError([
            *problems(machines.found),
            f"--min_learners={config.cluster.min_learners}: only {present} can be reached",
        ])  # fmt: skip
    for process in missing:
        print(
            f"{machines.found[process.node]}; the run starts without {process.name}: to include "
            "it, stop the run and launch it again, which resumes it",
            file=sys.stderr,
        )
    # The machines that are connected keep their names and the names of their files.
    known = {node.name: node for node in plan.nodes}
    smaller = plan_of_rows(config, kept, sys.executable)
    return smaller._replace(nodes=tuple(known[node.name] for node in smaller.nodes))


def _check(config: Config, launcher: Launcher, machines: Machines) -> dict[str, Checked]:
    found = on_all(machines.reached(), launcher.check)
    failed = {**machines.found, **{n: e for n, e in found.items() if isinstance(e, ClusterError)}}
    _require_enough(config, launcher.record.plan, failed)
    machines.found.update(failed)
    return good(found)


def _start(config: Config, launcher: Launcher, machines: Machines) -> None:
    try:
        found = on_all(machines.reached(), launcher.start)
        failed = {n: each for n, each in found.items() if isinstance(each, ClusterError)}
        _require_enough(config, launcher.record.plan, {**machines.found, **failed})
        machines.found.update(failed)
    except BaseException:
        end(launcher.record, machines)
        raise


def _require_enough(config: Config, plan: Plan, found: Mapping[str, object]) -> None:
    """Raises ClusterError unless the machines that can be used are enough to start with."""
    lost = {name: each for name, each in found.items() if isinstance(each, ClusterError)}
    if not lost:
        return
    actors = [p for p in plan.processes if not p.is_learner and p.node not in lost]
    learners_lost = [p for p in plan.processes if p.is_learner and p.node in lost]
    enough = config.cluster.min_actors is not None and len(actors) >= config.cluster.min_actors
    if learners_lost or not enough:
        hint = []
        if not learners_lost:
            hint = [f"{len(actors)} actor(s) could start: --min_actors={len(actors)} starts them "
                    "without the other machines, which join later"]  # fmt: skip
        raise ClusterError([*problems(lost), *hint])
    for line in problems(lost):
        print(f"{line}; the run starts without it", file=sys.stderr)
