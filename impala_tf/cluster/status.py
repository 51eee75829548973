"""`status`: what a launched run does, the same for every engine."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from impala_tf.cluster.machines import Machines, connected, on_all
from impala_tf.cluster.node import state as files
from impala_tf.cluster.node.state import NodeState
from impala_tf.cluster.record import Record, load
from impala_tf.cluster.runner import NO_WORKDIR, ClusterError, CommandRunner
from impala_tf.logdir import Logdir
from impala_tf.machine.node import is_learner
from impala_tf.machine.supervision import OVER, ProcessState
from impala_tf.monitoring.metrics import bottleneck_of
from impala_tf.printable import columns, duration, printable_parts

COLUMNS = (
    "process",
    "host",
    "state",
    "uptime",
    "restarts",
    "agent steps/s",
    "parameter lag",
    "last contact",
    "detail",
)
Status = Mapping[str, Any]
"""The status.json of a learner."""
_LEAST_WIDTH = 140  # leaves room for a detail; a narrower terminal wraps the lines
_LOOK_S = 15.0
# Prints files; '' for a file that does not exist.
_CAT = r'for f; do cat -- "$f" 2>/dev/null; printf "\0"; done'
_FOLLOW_S = 2.0
_FINAL = ("stopped", "done", "failed")  # states of a learner: `monitoring.status_file`
_STYLES = {"state": "bold", "running": "green", "finished": "green", "failed": "red"}


class Seen(NamedTuple):
    """A process, as somebody has seen it."""

    name: str
    host: str
    word: str
    """Its state, or why that is not known."""
    state: ProcessState | None = None
    """None: it was not started, or nobody knows."""
    now_unix_s: float = 0.0
    """When that was, by its machine's clock."""
    detail: str = ""
    """What to say in place of the state's own detail."""


class Run(NamedTuple):
    """A run, as somebody has seen it."""

    processes: Sequence[Seen]
    statuses: Mapping[int, Status]
    """{rank: status} of the learners that have written one."""
    answers: str = ""
    """How many machines have answered."""
    problems: Sequence[str] = ()
    """What could not be looked at, and why."""


# --- a run in a terminal ---


def print_run(run: Run, names: Iterable[str] = (), problems: bool = False) -> None:
    """Prints sums, progress and a line for each process, cut to the terminal's width.

    Args:
      run: the run.
      names: the processes in the table. Default: all. The sums are always those of all.
      problems: whether the table has only what somebody has to look at.
    """
    console, rows = Console(), _chosen(run, names, problems)
    table = _table(rows, console) if rows else [Text("no process needs attention")]
    for line in [*map(Text, summary(run)), *table, *map(Text, run.problems)]:
        console.print(line, soft_wrap=True)


def summary(run: Run) -> list[str]:
    """Returns a line with the numbers of processes, and one with the run's progress."""
    parts = []
    for job in ("learner", "actor"):
        words = Counter(seen.word for seen in run.processes if seen.name.startswith(job))
        ordered = sorted(words.items(), key=lambda item: (item[0] != "running", -item[1]))
        if ordered:
            parts.append(f"{job}s: " + ", ".join(f"{count} {word}" for word, count in ordered))
    status = run.statuses.get(0)
    is_there = any(seen.name == "learner-0" and seen.word == "running" for seen in run.processes)
    if status and status.get("row") and is_there:
        parts.append(f"{status['row'].get('agent_steps_per_s') or 0:,.0f} agent steps/s")
    parts += [run.answers] if run.answers else []
    return ["; ".join(parts), *([progress(status, is_there)] if status else [])]


def progress(status: Status, is_there: bool) -> str:
    """Returns a run's state, frames, mean return, and what limits its speed or has ended it.

    Args:
      status: learner 0's.
      is_there: whether the learner runs. If not, it may have been killed.
    """
    was = "" if is_there or status["state"] in _FINAL else "was "
    frames, total = status["environment_frames"], status["total_environment_frames"]
    row = status.get("row") or {}
    parts = [f"{was}{status['state']}: {frames:,} of {total:,} frames"]
    if (mean := row.get("episode_return_mean")) is not None:
        parts.append(f"mean return {mean:,.2f}")
    if is_there and (limit := bottleneck_of(row)):
        parts.append(f"limited by {limit[0]} ({limit[1]})")
    return "; ".join([*parts, *filter(None, [status.get("end_reason")])])


def rows_of(run: Run) -> list[list[str]]:
    """Returns the cells of every process; see COLUMNS."""
    measured = _measured(run)
    heard = [actor for each in run.statuses.values() for actor in each.get("actors", ())]
    notes = {actor["name"]: [actor.get("trouble", "")] for actor in heard}
    statuses = {f"learner-{rank}": status for rank, status in run.statuses.items()}
    notes |= {name: list(status.get("notes", ())) for name, status in statuses.items()}
    rows = []
    for seen in run.processes:
        state, said = seen.state, notes.get(seen.name, [])
        up, numbers = "", ["", "", ""]
        if state is None or seen.detail:
            details = [seen.detail]
        elif seen.word == "running":
            details = [*_troubles(statuses.get(seen.name, {}), seen.now_unix_s), *said]
            details = details if any(details) else [state.detail]
            if state.started_unix_s:
                up = duration(seen.now_unix_s - state.started_unix_s)
            numbers = measured.get(seen.name, numbers)
        else:
            details = [state.detail, *said]
        restarts = "" if state is None else str(state.restarts)
        detail = "; ".join(filter(None, details))
        rows.append([seen.name, seen.host, seen.word, up, restarts, *numbers, detail])
    return rows


def _chosen(run: Run, names: Iterable[str], problems: bool) -> list[list[str]]:
    chosen = set(names)
    return [
        row
        for row in rows_of(run)
        if (not chosen or row[0] in chosen) and not (problems and _rank(row) > 0)
    ]


def _rank(row: Sequence[str]) -> int:
    """Returns 0 for a process that somebody has to look at, and more for one that is fine."""
    name, _, state, *_, detail = row
    if state in ("finished", "stopped"):
        return 3
    if state == "running" and not detail:
        return 1 if is_learner(name) else 2
    return 0


def _table(rows: Sequence[Sequence[str]], console: Console) -> list[Text]:
    all_rows = [COLUMNS, *rows]
    lines = []
    for row, line in zip(all_rows, columns(all_rows).splitlines(), strict=True):
        lines.append(Text(line, _STYLES.get(row[2], "")))
        if console.is_terminal:
            lines[-1].truncate(max(console.width, _LEAST_WIDTH), overflow="ellipsis")
    return lines


def _troubles(status: Status, now_unix_s: float) -> Iterator[str]:
    """Yields what a running learner says is wrong."""
    if away := status.get("away_learners"):
        here = status["num_learners"]
        who = ", ".join(
            f"learner-{each['learner']} (for {duration(now_unix_s - each['since_unix_s'])})"
            for each in away
        )
        yield f"training with {here} of {here + len(away)} learners; away: {who}"
    if since_s := status.get("starving_since_unix_s"):
        yield f"starving for {duration(now_unix_s - since_s)}: no unrolls"
    if trouble := status.get("storage_trouble"):
        yield f"{trouble['text']} (for {duration(now_unix_s - trouble['since_unix_s'])})"


def _measured(run: Run) -> dict[str, list[str]]:
    """Returns {name: [agent steps/s, parameter lag, last contact]}, as the learners say."""
    now_s = {seen.name: seen.now_unix_s for seen in run.processes}
    found = {}
    for rank, status in run.statuses.items():
        now = now_s.get(f"learner-{rank}", 0.0)
        written = f"{duration(now - status.get('updated_unix_s', now))} ago"
        found[f"learner-{rank}"] = ["", "", written]
        for each in status.get("actors", ()):
            contact = f"{duration(now - each['last_contact_unix_s'])} ago"
            found[each["name"]] = [*_numbers(each, "parameter_lag"), contact]
    status = run.statuses.get(0, {})  # learner 0 knows the rates of all learners
    row = status.get("row")
    for each in status.get("learners") or ([{"learner": 0, **row}] if row else []):
        name = f"learner-{each['learner']}"
        found[name] = [*_numbers(each, "policy_lag_mean"), found.get(name, [""])[-1]]
    return found


def _numbers(measured: Mapping[str, Any], lag_name: str) -> tuple[str, str]:
    rate, lag = measured["agent_steps_per_s"], measured.get(lag_name)
    return "" if rate is None else f"{rate:,.0f}", "" if lag is None else f"{lag:.1f}"


# --- a run of another engine ---


def run_in(logdir: Path, is_there: bool, hosts: Mapping[str, str] | None = None) -> Run:
    """Returns a run from the files in its logdir, which its machines share.

    Args:
      logdir: the run's logdir.
      is_there: whether its job is running. If not, its processes may have been killed.
      hosts: {node: where it is} of those that answer, if the engine knows that.
    """
    known, seen = hosts or {}, []
    for node in files.read_states(logdir):
        answers = is_there and (hosts is None or node.node in hosts)
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(node.now_unix_s))
        for each in node.processes.values():
            is_known = answers or each.state in (*OVER, "left")
            word, detail = (
                (each.state, "") if is_known else (f"was {each.state}", f"last seen {at}")
            )
            host = known.get(node.node, "")
            seen.append(Seen(each.name, host, word, each, node.now_unix_s, detail))
    path = Logdir(logdir).status()
    status = parse_status(path.read_text(errors="replace")) if path.is_file() else None
    seen.sort(key=lambda each: (not is_learner(each.name), len(each.name), each.name))
    return Run(seen, {0: status} if status else {})


# --- a run over SSH ---


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
    logdir: Path, follow: bool = False, targets: tuple[str, ...] = (), problems: bool = False
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
    record = load(logdir)
    names = set().union(*map(record.plan.processes_called, targets))
    with (
        connected([], record.passwords()) as machines,
        Live(auto_refresh=False, transient=True) as live,
    ):
        while True:
            run = _look_at_all(record, machines)
            if not follow:
                break
            if live.console.is_terminal:  # Live cuts off what the terminal has no lines for
                rows = sorted(_chosen(run, names, problems), key=_rank)
                live.update(
                    Group(*map(Text, summary(run)), *_table(rows, live.console)), refresh=True
                )
            else:  # there, Live shows nothing
                print_run(run, names, problems)
                print()
            time.sleep(_FOLLOW_S)
            record = load(logdir)
    print_run(run, names, problems)
    return 1 if run.problems else 0


def _look_at_all(record: Record, machines: Machines) -> Run:
    looks = on_all(record.plan.nodes, lambda node: look(machines.runner(node), record))
    return run_of(record, looks)


def run_of(record: Record, looks: Mapping[str, Look | ClusterError]) -> Run:
    """Returns a run, from {name of a machine: its state, or why it is not known}."""
    seen, there = [], [each for each in looks.values() if isinstance(each, Look)]
    for process in record.plan.processes:
        name, host, at = process.name, process.node, looks[process.node]
        if isinstance(at, ClusterError):
            seen.append(Seen(name, host, "unknown", detail="unreachable"))
        elif at.state is None or (state := at.state.processes.get(name)) is None:
            seen.append(Seen(name, host, "not started"))
        elif at.is_silent and state.state not in (*OVER, "left"):
            silent = "its supervisor is silent"
            seen.append(Seen(name, host, "lost", state, at.now_unix_s, silent))
        else:
            seen.append(Seen(name, host, state.state, state, at.now_unix_s))
    return Run(
        seen,
        {rank: status for each in there for rank, status in each.statuses.items()},
        f"{len(there)} of {len(looks)} machine(s) answer",
        [str(each) for each in looks.values() if isinstance(each, ClusterError)],
    )


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
    if "\0" not in done.text and done.status != NO_WORKDIR:
        raise ClusterError(f"{node.name}: {done.last_line}")
    texts = done.text.split("\0")[:-1] or [""] * len(paths)
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
    process, status = state.processes.get(name), parse_status(text)
    if status is None or process is None or process.started_unix_s is None:
        return None
    if process.pid is not None and status.get("pid") == process.pid:
        return status  # whatever its clock says
    # A restarted learner writes no status until it trains again; its last one is still true.
    first_s = process.started_unix_s if process.restarts == 0 else 0.0
    return status if status["updated_unix_s"] >= first_s else None


def parse_status(text: str) -> Status | None:
    """Returns a learner's status; None if it is missing or half written: the disk is full."""
    try:
        status = printable_parts(json.loads(text))
    except ValueError:
        return None
    return status if isinstance(status, dict) and "state" in status else None
