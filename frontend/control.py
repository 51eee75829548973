"""status, logs and stop: manage a launched run from any terminal."""

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
from frontend.cluster import Status, read_status
from frontend.errors import ClusterError
from frontend.machine import Machine
from frontend.plan import Plan
from frontend.process_state import OVER, log_path
from frontend.record import Record, load
from impala_tf.config import ConfigError

_COLUMNS = ("process", "host", "state", "uptime", "restarts", "agent steps/s", "parameter lag",
            "last contact", "detail")  # fmt: skip
_STOP = "python -m frontend stop"
_FOLLOW_S = 0.5
_FIRST_BYTES = 20_000
_STYLES = {"running": "green", "finished": "green", "failed": "red", "refused": "red"}


def show_status(logdir: Path, console: Console) -> int:
    """Prints the state of every process; returns 1 if a machine is unreachable, else 0."""
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
    reached = [answer for answer in answers.values() if not isinstance(answer, ClusterError)]
    rates = {name: words for answer in reached for name, words in answer["rates"].items()}
    contacts = {name: word for answer in reached for name, word in answer["contacts"].items()}
    for process in record.plan.processes:
        answer = answers[process.place]
        row = (
            ["unknown", "", "", "", "", "", "unreachable"]
            if isinstance(answer, ClusterError)
            else _row(answer, process.name, rates, contacts)
        )
        cells = map(Text, (process.name, process.place, *row))  # not as markup
        table.add_row(*cells, style=_STYLES.get(row[0]))
    console.print(table)
    orphans = _orphans(record, answers)
    if orphans:
        line = f"no learner is left, but {orphans} actor(s) wait for one; stop them with {_STOP}"
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    problems = [str(a) for a in answers.values() if isinstance(a, ClusterError)]
    for problem in problems:
        console.print(problem, markup=False, highlight=False, soft_wrap=True)
    return 1 if problems else 0


def follow_logs(logdir: Path, name: str, follow: bool) -> int:
    """Prints the end of a process's log. With `follow`, keeps printing what is added to it."""
    record = load(logdir)
    process = next((p for p in record.plan.processes if p.name == name), None)
    if process is None:
        names = ", ".join(p.name for p in record.plan.processes)
        raise ConfigError(f"{name}: no such process; this run has {names}")
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
        raise ClusterError(f"{process.place}: {path}: no output yet") from error
    finally:
        found.close()
    return 0


def stop(logdir: Path, timeout_s: float) -> int:
    """Stops the processes of a run, and nothing else.

    Returns 1 if a process still runs or had to be killed, or if a machine is unreachable, else 0.
    """
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
    print(f"stopped {len(record.plan.processes)} processes on {len(record.plan.places)} machine(s)")
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
    """Returns the machine's report, plus what its learners know about themselves and their actors.

    That is "rates", {name: (agent steps/s, parameter lag)}, and "contacts", {name: how long ago}.
    Learner 0 knows the rates of all learners.
    """
    if isinstance(machine, ClusterError):
        raise machine
    mine = [process.name for process in record.plan.on(machine.place)]
    answer = fleet.report(machine, record.run_id, mine)
    answer["rates"], answer["contacts"] = {}, {}
    for name in mine:
        state = answer["processes"].get(name)
        if state is None or not name.startswith("learner-"):
            continue
        status = read_status(machine, int(name.removeprefix("learner-")))
        # Before this learner has written one, there may be an older file.
        if status is not None and status["updated_unix_s"] >= state["started_unix_s"]:
            answer["rates"].update(_rates(status))
            answer["contacts"].update(
                (contact, f"{_duration(max(0.0, answer['now_unix_s'] - unix_s))} ago")
                for contact, unix_s in _contacts(name, status).items()
            )
    return answer


def _rates(status: Status) -> dict[str, tuple[str, str]]:
    """Returns {name: (agent steps/s, parameter lag)} of the actors and learners in a status."""
    found = {
        actor["name"]: (actor["agent_steps_per_s"], actor["parameter_lag"])
        for actor in status["actors"]
    }
    row = status["row"]
    for learner in status["learners"] or ([{"learner": 0, **row}] if row else []):
        name = f"learner-{learner['learner']}"
        found[name] = (learner["agent_steps_per_s"], learner["policy_lag_mean"])
    return {
        name: ("" if rate is None else f"{rate:,.0f}", "" if lag is None else f"{lag:.1f}")
        for name, (rate, lag) in found.items()
    }


def _contacts(learner: str, status: Status) -> dict[str, float]:
    """Returns when a learner and its actors were last heard from, in seconds since 1970."""
    actors = {actor["name"]: actor["last_contact_unix_s"] for actor in status["actors"]}
    return {learner: status["updated_unix_s"], **actors}


def _row(
    answer: dict[str, Any],
    name: str,
    rates: Mapping[str, tuple[str, str]],
    contacts: Mapping[str, str],
) -> list[str]:
    state = answer["processes"].get(name)
    if state is None:
        return ["not started", "", "", "", "", "", ""]
    is_alive = bool(state["pids"])
    word = state["state"] if is_alive or state["ended_unix_s"] else "lost"
    up = answer["now_unix_s"] - state["started_unix_s"] if word == "running" else None
    row = [word, _duration(up), str(state["restarts"])]
    if word != "running":
        return [*row, "", "", "", state["detail"]]
    return [*row, *rates.get(name, ("", "")), contacts.get(name, ""), state["detail"]]


def _orphans(record: Record, answers: Mapping[str, dict[str, Any] | ClusterError]) -> int:
    """Returns how many actors still run although every learner is over; 0 if that is not certain.

    With --detach nothing stops them. An actor cannot tell a learner that is over from one that is
    unreachable for a while, so it keeps waiting.
    """
    alive = 0
    for process in record.plan.processes:
        answer = answers[process.place]
        if isinstance(answer, ClusterError):
            return 0
        state = answer["processes"].get(process.name)
        if process.name.startswith("actor-"):
            alive += bool(state and state["pids"])
        elif state is None or state["state"] not in OVER:
            return 0
    return alive


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
