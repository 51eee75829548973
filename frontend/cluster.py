"""Launches a run on the machines of a workers CSV and shows it until it ends."""

from __future__ import annotations

import contextlib
import json
import shlex
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from frontend import fleet
from frontend import launch as launching
from frontend.errors import ClusterError
from frontend.machine import Machine
from frontend.plan import default_logdir
from frontend.process_state import OVER
from frontend.record import Record, load
from impala_tf.config import Config, ConfigError

_UPDATE_S = 0.25
_STATUS_S = 1.0
_REPORT_S = 5.0
_ACTORS_END_S = 30.0
"""When a run ends, the learners tell their actors, which then have this long to exit."""

Status = Mapping[str, Any]


class Display(Protocol):
    """Shows a run; see impala_tf.monitoring.live_display."""

    def start(self) -> None:
        """Starts showing the run."""

    def update(self) -> None:
        """Shows the newest status; called about four times a second."""

    def note(self, text: str) -> None:
        """Shows an event."""

    def stop(self, final_line: str) -> None:
        """Stops showing the run and prints `final_line`."""


def launch(
    config: Config,
    *,
    make_credentials: Callable[[Path], None],
    make_display: Callable[[Callable[[], Any]], Display],
) -> int:
    """Launches a run and, without --detach, shows it until it ends. Ctrl-C leaves it running.

    Args:
      config: every flag; `workers_csv_path` is set. `logdir` defaults to runs/LEVEL-AGENT.
      make_credentials: creates the run's certificates in a folder, unless they are there already.
      make_display: makes a display. Its argument returns the newest status, or None if there is
        none yet.

    Returns:
      0: all learners finished or were stopped, or the run was left running. 1: a machine cannot be
      used, or the logdir or tmux session is in use (standard error has one line per problem), or
      a learner failed or another launch took over the logdir (the display's final line says so).

    Raises:
      ConfigError: if the workers CSV is unusable; no connection has been opened.
    """
    plan, passwords = fleet.plan_of(config, sys.executable)
    logdir = Path(default_logdir(config)).resolve()
    csv_path = config.cluster.workers_csv_path or ""
    credentials = Path(config.process.credentials or logdir / "credentials")
    try:
        with fleet.connected(plan, passwords, config.cluster.accept_new_host_keys) as machines:
            launching.check(plan, machines, csv_path)
            make_credentials(credentials)
            record = launching.start(plan, machines, credentials, logdir, csv_path)
            if config.cluster.detach:
                print(f"started {_where_it_runs(record, logdir)}")
                return 0
            return _Watch(record, machines, logdir, make_display).run()
    except ClusterError as error:
        print(*error.problems, sep="\n", file=sys.stderr)
        return 1


def read_status(machine: Machine, rank: int = 0) -> Status | None:
    """Returns the newest status of learner `rank`, or None if it has not written one yet."""
    name = "status.json" if rank == 0 else f"status-{rank}.json"
    try:
        status: Status = json.loads(machine.read(f"{machine.place.logdir}/{name}"))
    except FileNotFoundError:
        return None
    return status


def _where_it_runs(record: Record, logdir: Path) -> str:
    flag = shlex.join([f"--logdir={logdir}"])
    count = len(record.plan.processes)
    return (
        f"{count} processes on {len(record.plan.places)} machine(s); "
        f"see python -m frontend status|logs|stop {flag}, "
        f"or tmux attach -t {record.plan.tmux_sess} on a machine"
    )


class _Watch:
    """The launcher's terminal while it is attached to the run."""

    def __init__(
        self,
        record: Record,
        machines: Mapping[str, Machine],
        logdir: Path,
        make_display: Callable[[Callable[[], Any]], Display],
    ) -> None:
        self._record = record
        self._machines = machines
        self._logdir = logdir
        self._status: Status | None = None
        self._states: dict[str, dict[str, Any]] = {}
        self._lost: dict[str, str] = {}
        self._first_start_s: float | None = None
        self._failure: BaseException | None = None
        self._notes: list[str] = []
        self._taken_over = False
        self._closing = threading.Event()
        self._display = make_display(lambda: self._status)

    def run(self) -> int:
        """Shows the run until it ends; returns the exit status."""
        threads = [
            threading.Thread(target=self._every, args=(_STATUS_S, self._fetch_status)),
            threading.Thread(target=self._every, args=(_REPORT_S, self._fetch_states)),
        ]
        self._display.start()
        for thread in threads:
            thread.start()
        final = f"left running: {_where_it_runs(self._record, self._logdir)}"
        status = 0
        try:
            status, final = self._until_over()
        except KeyboardInterrupt:
            pass  # The run itself continues.
        finally:
            self._closing.set()
            for thread in threads:
                thread.join()
            self._display.stop(final)
        return status

    def _until_over(self) -> tuple[int, str]:
        over_since_s: float | None = None
        while True:
            if self._failure is not None:
                raise self._failure
            if self._taken_over:
                return 1, f"this run has ended; {self._logdir} now belongs to a later launch"
            while self._notes:
                self._display.note(self._notes.pop(0))
            self._display.update()
            states = dict(self._states)
            over = {name for name, state in states.items() if state["state"] in OVER}
            learners = {name for name in self._names() if name.startswith("learner-")}
            if learners <= over:
                now_s = time.monotonic()
                over_since_s = over_since_s or now_s
                good = all(states[name]["state"] in ("finished", "stopped") for name in learners)
                everyone = over.issuperset(self._names())
                if everyone or not good or now_s - over_since_s > _ACTORS_END_S:
                    return self._result(good, {n: states[n] for n in sorted(learners)})
            time.sleep(_UPDATE_S)

    def _result(self, good: bool, learners: dict[str, dict[str, Any]]) -> tuple[int, str]:
        for problem in self._stop_the_rest():
            self._display.note(problem)
        where = f"logdir {self._machines[self._record.plan.processes[0].place].place.logdir}"
        if good:
            return 0, f"done; {where} on {self._record.plan.processes[0].place}"
        failed = [
            f"{name} {state['state']}: {state['detail']}"
            for name, state in learners.items()
            if state["state"] not in ("finished", "stopped")
        ]
        return 1, f"failed: {'; '.join(failed)}; see python -m frontend logs NAME"

    def _stop_the_rest(self) -> list[str]:
        """Stops what is left once the learners are over. The windows stay open."""

        def end_on(machine: Machine) -> Any:
            return launching.end_processes(self._record, machine, 120.0)["left"]

        found = fleet.try_all(self._machines.values(), lambda m: m.place.name, end_on)
        return [
            str(left) if isinstance(left, ClusterError) else f"{name}: still running: {list(left)}"
            for name, left in found.items()
            if left
        ]

    def _names(self) -> list[str]:
        return [process.name for process in self._record.plan.processes]

    def _every(self, interval_s: float, work: Callable[[], None]) -> None:
        try:
            work()
            while not self._closing.wait(interval_s):
                work()
        except BaseException as failure:
            self._failure = failure  # _until_over raises it in the main thread.

    def _fetch_status(self) -> None:
        machine = self._machines[self._record.plan.processes[0].place]
        try:
            status = read_status(machine)
        except ClusterError:
            return  # _fetch_states reports unreachable machines.
        # Before learner 0 has written one, an earlier run in this logdir may have left a file.
        first_s = self._first_start_s
        if status is not None and first_s is not None and status["updated_unix_s"] >= first_s:
            self._status = status

    def _fetch_states(self) -> None:
        # A launch into a logdir in use is refused. So if there was a later one, this run is over.
        with contextlib.suppress(ConfigError):
            self._taken_over = load(self._logdir).run_id != self._record.run_id

        def ask(machine: Machine) -> dict[str, Any]:
            names = [process.name for process in self._record.plan.on(machine.place)]
            found: dict[str, Any] = fleet.report(machine, self._record.run_id, names)["processes"]
            return found

        found = fleet.try_all(self._machines.values(), lambda m: m.place.name, ask)
        for place, answer in found.items():
            if isinstance(answer, ClusterError):
                if place not in self._lost:
                    self._notes.append(f"{answer}; the run continues there, but is not shown")
                self._lost[place] = str(answer)
                continue
            if self._lost.pop(place, None):
                self._notes.append(f"{place}: reachable again")
            for name, state in answer.items():
                before = self._states.get(name)
                if state["restarts"] > (before["restarts"] if before else 0):
                    self._notes.append(f"{name} on {place} exited: {state['detail']}")
                self._states[name] = state
                if name == "learner-0" and state["started_unix_s"]:
                    self._first_start_s = self._first_start_s or state["started_unix_s"]
