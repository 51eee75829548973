"""Works on all machines of a plan at once: connects to them, asks them, stops processes there."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from frontend import machine, ssh
from frontend.errors import ClusterError
from frontend.machine import LocalMachine, Machine, in_workdir
from frontend.plan import Here, Place, Plan, default_logdir, make_plan, passwords
from frontend.project import ROOT
from frontend.record import Record
from frontend.workers import Secret, read_workers
from impala_tf.config import Config, ConfigError

T = TypeVar("T")
R = TypeVar("R")
_MAX_AT_ONCE = 64


def plan_of(config: Config, python: str) -> tuple[Plan, dict[str, Secret]]:
    """Returns the plan of a launch and {name of the Place: password}. Opens no connection.

    Args:
      config: `workers_csv_path` is set.
      python: the interpreter for rows of this machine that name none.

    Raises:
      ConfigError: with every problem of the workers CSV.
    """
    if not config.cluster.workers_csv_path:
        raise ConfigError("--workers_csv_path: name the CSV of the machines")
    rows = read_workers(Path(config.cluster.workers_csv_path))
    here = Here(ROOT, python, Path(default_logdir(config)).resolve(), machine.is_here)
    config = dataclasses.replace(
        config, run=dataclasses.replace(config.run, logdir=default_logdir(config))
    )
    plan = make_plan(config, rows, here)
    return plan, passwords(plan, rows)


def passwords_of(record: Record) -> dict[str, Secret]:
    """Returns the passwords of a launched run, from its workers CSV if that still exists."""
    path = Path(record.workers_csv_path)
    return passwords(record.plan, read_workers(path)) if path.exists() else {}


def try_all(
    items: Iterable[T], name: Callable[[T], str], work: Callable[[T], R]
) -> dict[str, R | ClusterError]:
    """Does `work` for all items in parallel; returns {name: result or ClusterError}."""

    def attempt(item: T) -> R | ClusterError:
        try:
            return work(item)
        except ClusterError as error:
            return error

    listed = list(items)
    with ThreadPoolExecutor(min(len(listed), _MAX_AT_ONCE) or 1) as pool:
        return dict(zip(map(name, listed), pool.map(attempt, listed), strict=True))


def on_all(machines: Mapping[str, Machine], work: Callable[[Machine], R]) -> dict[str, R]:
    """Does `work` on all machines in parallel. Raises ClusterError with every problem."""
    return _whole(try_all(machines.values(), lambda m: m.place.name, work))


def connect_each(
    plan: Plan, known: Mapping[str, Secret], accept_new_host_keys: bool
) -> dict[str, Machine | ClusterError]:
    """Connects to every machine of a plan; returns {name: Machine, or why it cannot be used}."""

    def connect(place: Place) -> Machine:
        if place.is_local:
            return LocalMachine(place)
        return ssh.connect(place, known.get(place.name), accept_new_host_keys)

    return try_all(plan.places, lambda place: place.name, connect)


@contextlib.contextmanager
def connected(
    plan: Plan, known: Mapping[str, Secret], accept_new_host_keys: bool = False
) -> Iterator[dict[str, Machine]]:
    """Connects to every machine of a plan. Raises ClusterError with all that cannot be used."""
    found = connect_each(plan, known, accept_new_host_keys)
    try:
        yield _whole(found)
    finally:
        close(found.values())


def close(found: Iterable[Machine | ClusterError]) -> None:
    """Closes all connections."""
    for each in found:
        if not isinstance(each, ClusterError):
            each.close()


def ask(machine: Machine, module: str, words: list[str], question: Any, timeout_s: float) -> Any:
    """Runs a module of `frontend` on a machine: JSON in, JSON out.

    Raises ClusterError if it fails.
    """
    place = machine.place
    done = machine.run(
        in_workdir(place, [place.python, "-m", module, *words]), json.dumps(question), timeout_s
    )
    if done.status != 0:
        raise ClusterError(
            f"{place.name}: {place.python} -m {module} in {place.workdir} failed: {done.last_line}"
        )
    return json.loads(done.stdout)


def report(machine: Machine, run_id: str | None, names: list[str] | None) -> dict[str, Any]:
    """Returns the states of processes on a machine; see `frontend.on_machine.report`."""
    question = {"logdir": machine.place.logdir, "run_id": run_id, "names": names}
    answer: dict[str, Any] = ask(machine, "frontend.on_machine", ["report"], question, 60.0)
    return answer


def stop(machine: Machine, run_id: str, names: list[str], timeout_s: float) -> dict[str, Any]:
    """Stops processes on a machine; see `frontend.on_machine.stop`."""
    question = {
        "logdir": machine.place.logdir, "run_id": run_id, "names": names, "timeout_s": timeout_s,
    }  # fmt: skip
    answer: dict[str, Any] = ask(
        machine, "frontend.on_machine", ["stop"], question, timeout_s + 30.0
    )
    return answer


def _whole(found: Mapping[str, R | ClusterError]) -> dict[str, R]:
    problems = [
        p for each in found.values() if isinstance(each, ClusterError) for p in each.problems
    ]
    if problems:
        raise ClusterError(problems)
    return {name: each for name, each in found.items() if not isinstance(each, ClusterError)}
