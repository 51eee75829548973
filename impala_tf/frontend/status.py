"""`status` and `logs`: what a launched run does, seen from any terminal."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from impala_tf.config import ConfigError
from impala_tf.frontend.machines import Machines, connected, try_all
from impala_tf.frontend.node import state as files
from impala_tf.frontend.node.state import NodeState, log_path, supervisor_log
from impala_tf.frontend.plan import NodeSpec, Plan, wide_console
from impala_tf.frontend.record import Record, load
from impala_tf.frontend.runner import NO_WORKDIR, ClusterError, CommandRunner
from impala_tf.logdir import Logdir
from impala_tf.machine.supervision import OVER
from impala_tf.printable import log_printer, printable_parts

COLUMNS = ("process", "host", "state", "uptime", "restarts", "agent steps/s", "parameter lag",
           "last contact", "detail")  # fmt: skip
Answers = Mapping[str, "Look | ClusterError"]
"""{name of a machine: its answer, or why there is none}."""
Status = Mapping[str, Any]
"""The status.json of a learner."""
_SUPERVISOR = "supervisor"
_LOOK_S = 15.0
# Prints files; '' for a file that does not exist.
_CAT = r'for f; do cat -- "$f" 2>/dev/null; printf "\0"; done'
_RECENT_BYTES = 20_000
_FOLLOW_S = 2.0
_FINAL = ("stopped", "done", "failed")  # states of a learner: `monitoring.status`
_STYLES = {"running": "green", "finished": "green", "failed": "red", "refused": "red"}


class Look(NamedTuple):
    """The state of a run on a machine."""

    state: NodeState | None
    """None if the run has not been started there."""
    is_silent: bool
    """Whether the supervisor seems to be dead or stopped, or the machine has booted since."""
    now_unix_s: float
    """The time by the machine's clock."""
    statuses: Mapping[int, Status]
    """{rank: status} of the machine's learners that have written one."""


def show_status(
    logdir: Path,
    follow: bool = False,
    targets: tuple[str, ...] = (),
    problems: bool = False,
) -> int:
    """Prints sums and the state of processes; returns 1 if a machine is unreachable, else 0.

    Args:
      logdir: the run's, on this machine.
      follow: whether to show it again and again, until Ctrl-C; off a terminal, one below the other.
      targets: processes or machines; none: all. The sums are always those of all.
      problems: whether to show only what somebody has to look at.

    Raises:
      ConfigError: a target is not of this run.
    """
    record, console = load(logdir), wide_console()
    _names(record.plan, targets)
    with (
        connected([], record.passwords()) as machines,
        Live(console=console, auto_refresh=False, transient=True) as live,
    ):
        answers = _look_at_all(record, machines)
        while follow:
            if console.is_terminal:
                # Live cuts off what the terminal has no lines for.
                rows = sorted(_rows(record, answers, targets, problems), key=_rank)
                live.update(Group(Text(_sums(record, answers)), _table_of(rows)), refresh=True)
            else:  # there, Live shows nothing
                _print_all(record, answers, console, targets, problems)
                _print_line(console, "")
            time.sleep(_FOLLOW_S)
            record = load(logdir)
            answers = _look_at_all(record, machines)
    _print_all(record, answers, console, targets, problems)
    return 1 if any(isinstance(each, ClusterError) for each in answers.values()) else 0


def _print_all(
    record: Record, answers: Answers, console: Console, targets: Sequence[str], problems: bool
) -> None:
    _print_line(console, _sums(record, answers))
    if rows := _rows(record, answers, targets, problems):
        console.print(_table_of(rows))
    else:
        _print_line(console, "no process needs attention")
    if reason := _end_reason(record, answers):
        _print_line(console, f"the run is done: {reason}")
    for each in answers.values():
        if isinstance(each, ClusterError):
            _print_line(console, str(each))


def _print_line(console: Console, line: str) -> None:
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def _look_at_all(record: Record, machines: Machines) -> Answers:
    """Looks at all machines in parallel, and logs in to those that are not connected yet."""

    def look_at(node: NodeSpec) -> Look:
        runner = machines.found.get(node.name)
        if runner is None or isinstance(runner, ClusterError):
            runner = machines.connect([node])[node.name]
        if isinstance(runner, ClusterError):
            raise runner
        return look(runner, record)

    return try_all(record.plan.nodes, lambda node: node.name, look_at)


def follow_log(
    logdir: Path,
    name: str,
    follow: bool,
    host: str | None = None,
) -> int:
    """Prints the end of a log. With `follow`, also what is added until Ctrl-C.

    Args:
      logdir: the run's, on this machine.
      name: a process, or "supervisor".
      follow: whether to go on.
      host: the machine whose supervisor is meant, if there are several.
    """
    record, show = load(logdir), log_printer()
    node = _machine_with(record.plan, name, host)
    with connected([node], record.passwords()) as machines:
        runner = machines.found[node.name]
        if isinstance(runner, ClusterError):
            raise runner
        is_supervisor = name == _SUPERVISOR
        log = supervisor_log(node.logdir, node.id) if is_supervisor else log_path(node.logdir, name)
        command = ["tail", "-c", str(_RECENT_BYTES), *(["-F"] if follow else []), "--", str(log)]
        if follow:
            running = runner.start(command)
            for line in running.output:
                show(line)
            running.finish()  # which fails if the connection was lost
            return 0
        done = runner.run(command)
        if done.status != 0:
            raise ClusterError(f"{node.name}: {log}: no output yet")
        show(done.stdout)
    return 0


def _machine_with(plan: Plan, name: str, host: str | None) -> NodeSpec:
    """Returns the machine that has a log. Raises ConfigError if there is none, or are several."""
    if host is not None and name != _SUPERVISOR:
        raise ConfigError(f"{host}: name a machine only after {_SUPERVISOR}")
    if name != _SUPERVISOR:
        nodes = plan.nodes_of([name])
        if not nodes:
            raise ConfigError(f"{name}: no such process")
        return nodes[0]
    if host is None and len(plan.nodes) > 1:
        machines = ", ".join(node.name for node in plan.nodes)
        raise ConfigError(f"{_SUPERVISOR}: each machine has one; add one of {machines}")
    return plan.machine_called(host or plan.nodes[0].name)


def _sums(record: Record, answers: Answers) -> str:
    """Returns the numbers of all processes and machines, and the run's progress, in two lines."""
    rows = rows_of(record, answers)
    parts = []
    for job in ("learner", "actor"):
        if words := Counter(row[2] for row in rows if row[0].startswith(job)):
            ordered = sorted(words.items(), key=lambda item: (item[0] != "running", -item[1]))
            parts.append(f"{job}s: " + ", ".join(f"{count} {word}" for word, count in ordered))
    row = _status_of_learner_0(answers).get("row")
    if row and any(cells[0] == "learner-0" and cells[2] == "running" for cells in rows):
        parts.append(f"{row['agent_steps_per_s'] or 0:,.0f} agent steps/s")
    there = sum(isinstance(each, Look) for each in answers.values())
    sums = "; ".join([*parts, f"{there} of {len(answers)} machine(s) answer"])
    if not (status := _status_of_learner_0(answers)):
        return sums
    is_there = any(cells[0] == "learner-0" and cells[2] == "running" for cells in rows)
    return f"{sums}\n{progress(status, is_there)}"


def progress(status: Status, is_there: bool) -> str:
    """Returns a run's state, frames and mean return.

    Args:
      status: learner 0's.
      is_there: whether the learner runs. If not, it may have been killed.
    """
    was = "" if is_there or status["state"] in _FINAL else "was "
    frames = f"{status['environment_frames']:,} of {status['total_environment_frames']:,} frames"
    mean = (status.get("row") or {}).get("episode_return_mean")
    games = "" if mean is None else f"; mean return {mean:,.2f}"
    return f"{was}{status['state']}: {frames}{games}"


def _end_reason(record: Record, answers: Answers) -> str:
    """Returns why the run was done before its last frame; '' if it was not."""
    states = {row[0]: row[2] for row in rows_of(record, answers)}
    is_done = states["learner-0"] == "finished"
    return str(_status_of_learner_0(answers).get("end_reason", "")) if is_done else ""


def _status_of_learner_0(answers: Answers) -> Status:
    return next((seen.statuses[0] for seen in _looks(answers) if 0 in seen.statuses), {})


def _rows(
    record: Record, answers: Answers, targets: Sequence[str], problems: bool
) -> list[list[str]]:
    names = _names(record.plan, targets)
    return [
        row
        for row in rows_of(record, answers)
        if row[0] in names and not (problems and _rank(row) > 0)
    ]


def _names(plan: Plan, targets: Sequence[str]) -> set[str]:
    """Returns the names of the processes that are meant. Raises ConfigError if one is unknown."""
    if not targets:
        return {process.name for process in plan.processes}
    return set().union(*(plan.processes_called(target) for target in targets))


def _rank(row: Sequence[str]) -> int:
    """Returns 0 for a process that somebody has to look at, and more for one that is fine."""
    name, _, state, *_, detail = row
    if state in ("finished", "stopped"):
        return 3
    if state == "running" and not detail:
        return 1 if name.startswith("learner-") else 2
    return 0


def _table_of(rows: Iterable[Sequence[str]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in COLUMNS:
        table.add_column(column, no_wrap=column != "detail")  # the others stay whole beside it
    for row in rows:
        table.add_row(*map(Text, row), style=_STYLES.get(row[2]))  # not as markup
    return table


def rows_of(record: Record, answers: Answers) -> list[list[str]]:
    """Returns the cells of every process; see COLUMNS."""
    measured, found = _measured(answers), []
    troubles = {actor["name"]: actor.get("trouble", "")
                for seen in _looks(answers) for status in seen.statuses.values()
                for actor in status["actors"]}  # fmt: skip
    for process in record.plan.processes:
        answer = answers[process.node]
        if isinstance(answer, ClusterError):
            row = ["unknown", "", "", "", "", "", "unreachable"]
        else:
            row = _row(answer, process.name, measured.get(process.name, ["", "", ""]))
            row[-1] = row[-1] or troubles.get(process.name, "")
        found.append([process.name, process.node, *row])
    return found


def _row(seen: Look, name: str, measured: Sequence[str]) -> list[str]:
    state = seen.state.processes.get(name) if seen.state is not None else None
    if state is None:
        return ["not started", "", "", "", "", "", ""]
    if seen.is_silent and state.state not in (*OVER, "left"):
        detail = "its supervisor is silent"
        return ["lost", "", str(state.restarts), "", "", "", detail]
    statuses = {f"learner-{rank}": status for rank, status in seen.statuses.items()}
    status = statuses.get(name, {})
    notes = list(status.get("notes", []))
    if state.state != "running":
        detail = "; ".join(filter(None, [state.detail, *notes]))
        return [state.state, "", str(state.restarts), "", "", "", detail]
    up = "" if state.started_unix_s is None else _duration(seen.now_unix_s - state.started_unix_s)
    detail = "; ".join([*_troubles(status, seen.now_unix_s), *notes]) or state.detail
    return [state.state, up, str(state.restarts), *measured, detail]


def _troubles(status: Status, now_unix_s: float) -> Iterator[str]:
    """Yields what a running learner says is wrong."""
    if away := status.get("away_learners"):
        here = status["num_learners"]
        who = ", ".join(
            f"learner-{each['learner']} (for {_duration(now_unix_s - each['since_unix_s'])})"
            for each in away
        )
        yield f"training with {here} of {here + len(away)} learners; away: {who}"
    if since_s := status.get("starving_since_unix_s"):
        yield f"starving for {_duration(now_unix_s - since_s)}: no unrolls"
    if refused := status.get("refused_actor"):
        yield refused
    if trouble := status.get("storage_trouble"):
        yield f"{trouble['text']} (for {_duration(now_unix_s - trouble['since_unix_s'])})"


def _measured(answers: Answers) -> dict[str, list[str]]:
    """Returns {name: [agent steps/s, parameter lag, last contact]}, as the learners say."""
    rates: dict[str, tuple[float | None, float | None]] = {}
    contacts: dict[str, str] = {}
    for seen in _looks(answers):
        for rank, status in seen.statuses.items():
            heard = {actor["name"]: actor["last_contact_unix_s"] for actor in status["actors"]}
            heard[f"learner-{rank}"] = status["updated_unix_s"]
            contacts |= {n: f"{_duration(seen.now_unix_s - s)} ago" for n, s in heard.items()}
            for each in status["actors"]:
                rates[each["name"]] = each["agent_steps_per_s"], each["parameter_lag"]
            row = status["row"]  # learner 0 knows the rates of all learners
            for each in status["learners"] or ([{"learner": 0, **row}] if row else []):
                name = f"learner-{each['learner']}"
                rates[name] = each["agent_steps_per_s"], each.get("policy_lag_mean")
    found = {}
    for name in rates | contacts:
        rate, lag = rates.get(name, (None, None))
        found[name] = [
            "" if rate is None else f"{rate:,.0f}",
            "" if lag is None else f"{lag:.1f}",
            contacts.get(name, ""),
        ]
    return found


def _looks(answers: Answers) -> Iterator[Look]:
    return (each for each in answers.values() if isinstance(each, Look))


def look(runner: CommandRunner, record: Record) -> Look:
    """Looks at a machine. Raises ClusterError if it is unreachable."""
    node = runner.node
    learners = [process.name for process in record.plan.on(node) if process.is_learner]
    ranks = [int(name.removeprefix("learner-")) for name in learners]
    paths = [
        str(files.state_path(node.logdir, node.id)),
        "/proc/sys/kernel/random/boot_id",
        "/proc/uptime",
        *(str(Logdir(Path(node.logdir)).status(rank)) for rank in ranks),
    ]
    done = runner.run(["sh", "-c", _CAT, "sh", *paths], timeout_s=_LOOK_S)
    output = done.text
    if "\0" not in output and done.status != NO_WORKDIR:
        raise ClusterError(f"{node.name}: {done.last_line}")
    texts = output.split("\0")[:-1] if "\0" in output else [""] * len(paths)
    state_text, boot_id, uptime, *statuses = texts
    state = files.parse_state(state_text) if state_text else None
    if state is None or state.run_id != record.run_id:
        return Look(None, False, 0.0, {})
    uptime_s = float(uptime.split()[0])
    return Look(
        state,
        is_silent=files.is_silent(state, boot_id.strip(), uptime_s),
        now_unix_s=state.now_unix_s + max(0.0, uptime_s - state.uptime_s),
        statuses={
            rank: status
            for rank, name, text in zip(ranks, learners, statuses, strict=True)
            if (status := _current(state, name, text)) is not None
        },
    )


def _current(state: NodeState, name: str, text: str) -> Status | None:
    """Returns a learner's status, unless an earlier run wrote it."""
    process = state.processes.get(name)
    if not text or process is None or process.started_unix_s is None:
        return None
    try:
        status: Status = printable_parts(json.loads(text))
    except ValueError:
        return None  # half written: the disk is full
    if process.pid is not None and status.get("pid") == process.pid:
        return status  # whatever its clock says
    # A restarted learner writes no status until it trains again; its last one is still true.
    first_s = process.started_unix_s if process.restarts == 0 else 0.0
    return status if status["updated_unix_s"] >= first_s else None


def _duration(seconds: float) -> str:
    minutes, seconds_left = divmod(max(0, int(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {seconds_left:02d} s" if minutes else f"{seconds_left} s"
