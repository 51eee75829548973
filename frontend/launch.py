"""Carries out a plan: checks every machine, copies what it needs, opens its tmux windows."""

from __future__ import annotations

import dataclasses
import secrets
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from frontend import fleet, project
from frontend import process_state as states
from frontend.errors import ClusterError
from frontend.machine import Machine, in_workdir
from frontend.plan import Plan, Process
from frontend.process_state import Seat, Spec
from frontend.record import Record, save
from frontend.tmux import Session

_ACTOR_FILES = ("ca.pem", "actor.pem", "actor.key")
"""The only credentials of the run that an actor needs."""
_START_TIMEOUT_S = 60.0


def check(plan: Plan, machines: Mapping[str, Machine], workers_csv_path: str) -> None:
    """Checks that a launch is possible; changes nothing. Raises ClusterError with every problem."""
    expected = project.manifest()

    def check_one(machine: Machine) -> None:
        place = machine.place
        if not place.is_local:
            try:
                differing = fleet.ask(machine, "frontend.project", [], expected, 60.0)
            except ClusterError as error:
                raise ClusterError(
                    f"{error.problems[0]}; run python -m frontend setup "
                    f"--workers_csv_path={workers_csv_path}"
                ) from error
            if differing:
                raise ClusterError(
                    f"{place.name}: the project in {place.workdir} differs from the one here "
                    f"({len(differing)} files, such as {differing[0]}); run python -m frontend "
                    f"setup --workers_csv_path={workers_csv_path}"
                )
        problems = []
        windows = Session(machine, plan.tmux_sess).windows()
        if windows and not all(window.dead and window.run_id for window in windows):
            names = ", ".join(window.name for window in windows)
            problems.append(
                f"{place.name}: tmux session {plan.tmux_sess} exists already, with {names}; if it "
                "is a run, stop it with python -m frontend stop, or give another --tmux_sess"
            )
        found = fleet.report(machine, None, None)["processes"].values()
        running = [f"{each['name']} (pid {each['pids'][0]})" for each in found if each["pids"]]
        if running:
            problems.append(
                f"{place.name}: {place.logdir} is in use by {', '.join(running)}; stop it with "
                "python -m frontend stop, or give another --logdir"
            )
        if problems:
            raise ClusterError(problems)

    fleet.on_all(machines, check_one)


def start(
    plan: Plan, machines: Mapping[str, Machine], credentials: Path, logdir: Path, csv_path: str
) -> Record:
    """Copies credentials and specs to the machines, then opens the windows there, learners first.

    Args:
      plan: the run.
      machines: {name of the Place: its machine}, for every one in the plan.
      credentials: the folder with the run's certificates, on this machine.
      logdir: the folder on this machine in which cluster.json is written.
      csv_path: the workers CSV.

    Raises:
      ClusterError: if a process could not be started. Those that were started are stopped again.
    """
    absolute = tuple(machines[place.name].place for place in plan.places)
    plan = dataclasses.replace(plan, places=absolute)
    record = Record(secrets.token_hex(8), time.time(), str(Path(csv_path).resolve()), plan)
    save(record, logdir)

    def copy_files(machine: Machine) -> None:
        processes = plan.on(machine.place)
        _copy_credentials(machine, processes, credentials)
        for process in processes:
            text = states.to_json(_spec(machine, process, record.run_id))
            machine.write(str(states.spec_path(machine.place.logdir, process.name)), text.encode())
        session = Session(machine, plan.tmux_sess)
        for window in session.windows() or []:  # `check` saw that their run has ended.
            session.close(window.run_id)

    def open_windows(machine: Machine) -> None:
        place = machine.place
        session = Session(machine, plan.tmux_sess)
        for process in plan.on(place):
            spec = str(states.spec_path(place.logdir, process.name))
            command = in_workdir(place, [place.python, "-m", "frontend.supervisor", spec])
            session.open(process.name, command, record.run_id)
        _await_start(machine, session, record)

    fleet.on_all(machines, copy_files)
    try:
        fleet.on_all(machines, open_windows)
    except BaseException:
        end(record, machines)
        raise
    return record


def end(record: Record, machines: Mapping[str, Machine], timeout_s: float = 120.0) -> list[str]:
    """Stops the processes of a run, and closes its windows on machines where none is left.

    Returns:
      One line for each process that still runs or had to be killed, and one for each machine that
      is unreachable.
    """

    def end_on(machine: Machine) -> list[str]:
        place = machine.place
        answer = end_processes(record, machine, timeout_s)
        if not answer["left"]:
            Session(machine, record.plan.tmux_sess).close(record.run_id)
        lines = [f"{place.name}: {name} is still running (pid {', '.join(map(str, pids))})"
                 for name, pids in answer["left"].items()]  # fmt: skip
        return lines + [
            f"{place.name}: {name} did not stop in time and was killed"
            for name, status in answer["stopped"].items()
            if status == -signal.SIGKILL
        ]

    found = fleet.try_all(machines.values(), lambda m: m.place.name, end_on)
    lists = [each.problems if isinstance(each, ClusterError) else each for each in found.values()]
    return [line for lines in lists for line in lines]


def end_processes(record: Record, machine: Machine, timeout_s: float) -> dict[str, Any]:
    """Stops a run's processes on a machine; see `frontend.on_machine.stop`."""
    names = [process.name for process in record.plan.on(machine.place)]
    return fleet.stop(machine, record.run_id, names, timeout_s)


def _copy_credentials(machine: Machine, processes: list[Process], source: Path) -> None:
    target = f"{machine.place.logdir}/credentials"
    if machine.place.is_local and Path(target).resolve() == source.resolve():
        return
    has_learner = any(process.name.startswith("learner-") for process in processes)
    names = sorted(path.name for path in source.iterdir()) if has_learner else _ACTOR_FILES
    for name in names:
        machine.write(f"{target}/{name}", (source / name).read_bytes())


def _spec(machine: Machine, process: Process, run_id: str) -> Spec:
    place = machine.place
    return Spec(
        run_id=run_id,
        name=process.name,
        argv=(place.python, *process.arguments),
        workdir=place.workdir,
        logdir=place.logdir,
        environment=dict(process.environment),
        max_restarts=process.max_restarts,
        seat=Seat(**dataclasses.asdict(process.group)) if process.group else None,
    )


def _await_start(machine: Machine, session: Session, record: Record) -> None:
    """Waits until every supervisor has written its state. Raises ClusterError if one does not."""
    names = [process.name for process in record.plan.on(machine.place)]
    until_s = time.monotonic() + _START_TIMEOUT_S
    while True:
        # In this order: a process may write its state and end between the two questions.
        dead = {window.name for window in session.windows() or [] if window.dead}
        answer = fleet.report(machine, record.run_id, names)
        silent = [name for name in names if name not in answer["processes"]]
        if not silent:
            return
        if dead.intersection(silent) or time.monotonic() > until_s:
            raise ClusterError(
                [f"{machine.place.name}: {name}: {session.last_line(name)}" for name in silent]
            )
        time.sleep(0.2)
