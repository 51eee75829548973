"""Looks after a launched run from any terminal: status, logs, stop."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from frontend import fleet, launch
from frontend.cluster import read_status
from frontend.errors import ClusterError
from frontend.machine import Machine
from frontend.plan import Plan
from frontend.process_state import OVER, log_path
from frontend.record import Record, load
from impala_tf.config import ConfigError

_COLUMNS = ("process", "host", "state", "uptime", "restarts", "agent steps/s", "parameter lag",
            "last contact", "")  # fmt: skip
_STOP = "python -m frontend stop"
_FOLLOW_S = 0.5
_FIRST_BYTES = 20_000
_STYLES = {"running": "green", "finished": "green", "failed": "red", "refused": "red"}


def show_status(logdir: Path, console: Console) -> int:
    """Prints how each process does; returns 1 where a machine does not answer, else 0."""
    record = load(logdir)
    found = fleet.connect_each(record.plan, fleet.passwords_of(record), False)
    try:
        answers = fleet.try_all(
            record.plan.places, lambda place: place.name, lambda p: _answer(record, found[p.name])
        )
    finally:
        fleet.close(found.values())
    table = Table(box=None, pad_edge=False)
    for column in _COLUMNS:
        table.add_column(column, no_wrap=True)
    actors: dict[str, tuple[dict[str, Any], float]] = {}
    for answer in answers.values():
        if not isinstance(answer, ClusterError):
            actors.update(answer["actors"])
    for process in record.plan.processes:
        answer = answers[process.place]
        row = (
            ["unknown", "", "", "", "", "", "no answer"]
            if isinstance(answer, ClusterError)
            else _row(answer, process.name, actors.get(process.name))
        )
        cells = map(Text, (process.name, process.place, *row))  # not as markup
        table.add_row(*cells, style=_STYLES.get(row[0]))
    console.print(table)
    orphans = _orphans(record, answers)
    if orphans:
        line = (
            f"no learner runs any more, and {orphans} actor(s) wait for one; end them with {_STOP}"
        )
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    problems = [str(a) for a in answers.values() if isinstance(a, ClusterError)]
    for problem in problems:
        console.print(problem, markup=False, highlight=False, soft_wrap=True)
    return 1 if problems else 0


def follow_logs(logdir: Path, name: str, follow: bool) -> int:
    """Prints the end of what a process printed; `follow`: and what it goes on to print."""
    record = load(logdir)
    process = next((p for p in record.plan.processes if p.name == name), None)
    if process is None:
        names = ", ".join(p.name for p in record.plan.processes)
        raise ConfigError(f"{name}: no such process; there are {names}")
    found = fleet.connect_each(_only(record, process.place), fleet.passwords_of(record), False)[
        process.place
    ]
    if isinstance(found, ClusterError):
        raise found
    path = str(log_path(found.place.logdir, name))
    try:
        offset = _print_from(found, path, 0, _FIRST_BYTES)
        while follow:
            time.sleep(_FOLLOW_S)
            offset = _print_from(found, path, offset)
    except FileNotFoundError as error:
        raise ClusterError(f"{process.place}: {path}: nothing printed yet") from error
    finally:
        found.close()
    return 0


def stop(logdir: Path, timeout_s: float) -> int:
    """Ends the processes of a run, and nothing else; returns 1 where some would not stop."""
    record = load(logdir)
    found = fleet.connect_each(record.plan, fleet.passwords_of(record), False)
    problems = [line for each in found.values() if isinstance(each, ClusterError)
                for line in each.problems]  # fmt: skip
    machines = {n: each for n, each in found.items() if not isinstance(each, ClusterError)}
    try:
        problems += launch.end(record, machines, timeout_s)
    finally:
        fleet.close(found.values())
    if problems:
        print(*problems, sep="\n", file=sys.stderr)
        return 1
    print(
        f"stopped; {len(record.plan.processes)} processes on {len(record.plan.places)} machine(s)"
    )
    return 0


def _only(record: Record, place: str) -> Plan:
    return dataclasses.replace(record.plan, places=(record.plan.place(place),))


def _print_from(machine: Machine, path: str, offset: int, at_most: int | None = None) -> int:
    fresh = machine.read(path, offset)
    shown = fresh if at_most is None else fresh[-at_most:]
    sys.stdout.buffer.write(shown)
    sys.stdout.buffer.flush()
    return offset + len(fresh)


def _answer(record: Record, machine: Machine | ClusterError) -> dict[str, Any]:
    """Returns the machine's report, and {actor: (its status, now there)} of its learners."""
    if isinstance(machine, ClusterError):
        raise machine
    mine = [process.name for process in record.plan.on(machine.place)]
    answer = fleet.report(machine, record.run_id, mine)
    answer["actors"] = {}
    for name in mine:
        if name.startswith("learner-"):
            status = read_status(machine, int(name.removeprefix("learner-")))
            for actor in (status or {}).get("actors", []):
                answer["actors"][actor["name"]] = (actor, answer["now_unix_s"])
    return answer


def _row(answer: dict[str, Any], name: str, seen: tuple[dict[str, Any], float] | None) -> list[str]:
    state = answer["processes"].get(name)
    if state is None:
        return ["not started", "", "", "", "", "", ""]
    lives = bool(state["pids"])
    word = state["state"] if lives or state["ended_unix_s"] else "vanished"
    up = answer["now_unix_s"] - state["started_unix_s"] if word == "running" else None
    row = [word, _duration(up), str(state["restarts"])]
    if seen is None or word != "running":
        return [*row, "", "", "", state["detail"]]
    actor, now_s = seen
    contact = _duration(max(0.0, now_s - actor["last_contact_unix_s"])) + " ago"
    rates = [f"{actor['agent_steps_per_s']:,.0f}", f"{actor['parameter_lag']:.1f}"]
    return [*row, *rates, contact, state["detail"]]


def _orphans(record: Record, answers: Mapping[str, dict[str, Any] | ClusterError]) -> int:
    """Returns how many actors live on after the learners are over for good; 0 where unsure.

    After --detach nobody is there to end them: an actor cannot tell the end of its learner from a
    cable that somebody is about to plug in again.
    """
    living = 0
    for process in record.plan.processes:
        answer = answers[process.place]
        if isinstance(answer, ClusterError):
            return 0
        state = answer["processes"].get(process.name)
        if process.name.startswith("actor-"):
            living += bool(state and state["pids"])
        elif state is None or state["state"] not in OVER:
            return 0
    return living


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
