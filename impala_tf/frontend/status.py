"""`status` and `logs`: what a launched run does, seen from any terminal."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from impala_tf.config import ConfigError, user_commands
from impala_tf.frontend import overview
from impala_tf.frontend.connection import CommandRunner, until_input_ends
from impala_tf.frontend.errors import ClusterError
from impala_tf.frontend.look import Look, look
from impala_tf.frontend.node.state import log_path, supervisor_log
from impala_tf.frontend.parallel import Machines, connected, try_all
from impala_tf.frontend.plan import NodeSpec, Plan
from impala_tf.frontend.process_rows import (
    COLUMNS,
    Answers,
    end_reason,
    noted,
    orphans,
    rows_of,
    steps_per_s,
)
from impala_tf.frontend.record import Record, load
from impala_tf.machine.supervision import OVER

_SUPERVISOR = "supervisor"
_RECENT_BYTES = 20_000
_POLL_S = 2.0
_FOLLOW_S = 2.0
_STYLES = {"running": "green", "finished": "green", "failed": "red", "refused": "red"}


class Shown(NamedTuple):
    """Which processes `status` shows; the sums are always those of all."""

    targets: tuple[str, ...] = ()
    """Processes or machines; none: all."""
    problems: bool = False
    """Whether to show only what somebody has to look at."""


def show_status(
    logdir: Path,
    follow: bool = False,
    targets: tuple[str, ...] = (),
    problems: bool = False,
    accept_new_host_keys: bool = False,
) -> int:
    """Prints sums and the state of processes; returns 1 if a machine is unreachable, else 0.

    Args:
      logdir: the run's, on this machine.
      follow: whether to show it again and again, until Ctrl-C; off a terminal, one below the other.
      targets: as in `Shown`.
      problems: as in `Shown`.
      accept_new_host_keys: whether to trust machines that SSH does not know yet.

    Raises:
      ConfigError: a target is not of this run.
    """
    record, console, shown = load(logdir), overview.wide_console(), Shown(targets, problems)
    _names(record.plan, shown.targets)
    with (
        connected([], record.passwords(), accept_new_host_keys) as machines,
        Live(console=console, auto_refresh=False, transient=True) as live,
    ):
        # On a terminal, lines about slow machines would disturb what is shown.
        answers = _look_at_all(record, machines, "" if follow else "looking")
        while follow:
            if console.is_terminal:
                live.update(_what_fits(record, answers, console, shown), refresh=True)
            else:  # there, Live shows nothing
                _print_all(record, answers, console, shown, logdir)
                _print_line(console, "")
            time.sleep(_FOLLOW_S)
            record = load(logdir)
            answers = _look_at_all(record, machines)
    _print_all(record, answers, console, shown, logdir)
    return 1 if any(isinstance(each, ClusterError) for each in answers.values()) else 0


def _print_all(
    record: Record, answers: Answers, console: Console, shown: Shown, logdir: Path
) -> None:
    _print_line(console, _sums(record, answers))
    rows = _rows(record, answers, shown)
    if rows:
        console.print(_table_of(rows))
    else:
        _print_line(console, "no process needs attention")
    if reason := end_reason(record, answers):
        _print_line(console, f"the run is done: {reason}")
    if waiting := orphans(record, answers):
        stop = user_commands.frontend("stop", f"--logdir={logdir}")
        line = f"no learner is left, but {waiting} actor(s) wait for one; stop them with {stop}"
        _print_line(console, line)
    for each in answers.values():
        if isinstance(each, ClusterError):
            _print_line(console, str(each))


def _print_line(console: Console, line: str) -> None:
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def _look_at_all(record: Record, machines: Machines, doing: str = "") -> Answers:
    """Looks at all machines in parallel, and logs in to those that are not connected yet."""

    def look_at(node: NodeSpec) -> Look:
        runner = machines.found.get(node.name)
        if runner is None or isinstance(runner, ClusterError):
            runner = machines.connect([node])[node.name]
        if isinstance(runner, ClusterError):
            raise runner
        return look(runner, record)

    return try_all(record.plan.nodes, lambda node: node.name, look_at, doing)


def follow_log(
    logdir: Path,
    name: str,
    follow: bool,
    host: str | None = None,
    accept_new_host_keys: bool = False,
) -> int:
    """Prints the end of a log. With `follow`, also what is added until the process is over.

    Args:
      logdir: the run's, on this machine.
      name: a process, or "supervisor".
      follow: whether to go on.
      host: the machine whose supervisor is meant, if there are several.
      accept_new_host_keys: whether to trust machines that SSH does not know yet.
    """
    record = load(logdir)
    node = _machine_with(record.plan, name, host)
    with connected([node], record.passwords(), accept_new_host_keys) as machines:
        runner = machines.found[node.name]
        if isinstance(runner, ClusterError):
            raise runner
        is_supervisor = name == _SUPERVISOR
        log = supervisor_log(node.logdir, node.id) if is_supervisor else log_path(node.logdir, name)
        path = str(log)
        command = ["tail", "-c", str(_RECENT_BYTES), *(["-F"] if follow else []), "--", path]
        if not follow:
            done = runner.run(command)
            if done.status != 0:
                raise ClusterError(f"{node.name}: {path}: no output yet")
            _print(done.stdout)
            return 0
        stream = runner.stream(until_input_ends(command))

        def end_with_the_process() -> None:
            try:
                while not _is_over(runner, record, name):
                    time.sleep(_POLL_S)
                time.sleep(_POLL_S)  # for its last lines
            finally:  # also if the machine cannot be asked any more
                stream.close_input()

        threading.Thread(target=end_with_the_process, daemon=True).start()
        for chunk in stream.chunks():
            _print(chunk)
        stream.finish()
    return 0


def _machine_with(plan: Plan, name: str, host: str | None) -> NodeSpec:
    """Returns the machine that has a log. Raises ConfigError if there is none, or are several."""
    if host is not None and name != _SUPERVISOR:
        raise ConfigError(f"{host}: name a machine only after {_SUPERVISOR}")
    if name != _SUPERVISOR:
        return plan.node(plan.process(name).node)
    if host is None and len(plan.nodes) > 1:
        machines = ", ".join(node.name for node in plan.nodes)
        raise ConfigError(f"{_SUPERVISOR}: each machine has one; add one of {machines}")
    return overview.machine_called(plan, host or plan.nodes[0].name)


def _is_over(runner: CommandRunner, record: Record, name: str) -> bool:
    try:
        state = look(runner, record).state
    except ClusterError:
        return False
    if name == _SUPERVISOR and state is not None:
        return all(process.state in OVER for process in state.processes.values())
    return state is not None and name in state.processes and state.processes[name].state in OVER


def _print(output: bytes) -> None:
    sys.stdout.buffer.write(output)
    sys.stdout.buffer.flush()


def _sums(record: Record, answers: Answers) -> str:
    """Returns the numbers of all processes and machines, in a line."""
    rows = rows_of(record, answers)
    parts = []
    for job in ("learner", "actor"):
        words = Counter(row[2] for row in rows if row[0].startswith(job))
        if words:
            parts.append(f"{job}s: {_counts(words)}")
    if (rate := steps_per_s(record, answers)) is not None:
        parts.append(f"{rate:,.0f} agent steps/s")
    there = sum(isinstance(each, Look) for each in answers.values())
    return "; ".join([*parts, f"{there} of {len(answers)} machine(s) answer"])


def _counts(words: Counter[str]) -> str:
    ordered = sorted(words.items(), key=lambda item: (item[0] != "running", -item[1]))
    return ", ".join(f"{count} {word}" for word, count in ordered)


def _rows(record: Record, answers: Answers, shown: Shown) -> list[list[str]]:
    names, telling = _names(record.plan, shown.targets), noted(answers)
    return [
        row
        for row in rows_of(record, answers)
        if row[0] in names and not (shown.problems and _rank(row, telling) > 0)
    ]


def _names(plan: Plan, targets: Sequence[str]) -> set[str]:
    """Returns the names of the processes that are meant. Raises ConfigError if one is unknown."""
    if not targets:
        return {process.name for process in plan.processes}
    return set().union(*(overview.processes_called(plan, target) for target in targets))


def _what_fits(record: Record, answers: Answers, console: Console, shown: Shown) -> Group:
    """Returns sums and rows, without rows that the terminal has no lines for: most are fine."""
    sums, rows = _sums(record, answers), _rows(record, answers, shown)
    columns = max(1, shutil.get_terminal_size().columns)
    # A table that is wider than the terminal takes several lines a row.
    lines_of_a_row = -(-console.width // columns)
    lines = console.height - 1 - -(-len(sums) // columns)
    fitting = lines // lines_of_a_row - 2  # the header, and the line below
    if len(rows) <= fitting + 1:
        return Group(Text(sums), _table_of(rows))
    telling = noted(answers)
    ordered = sorted(rows, key=lambda row: _rank(row, telling))
    first, rest = ordered[: max(fitting, 1)], ordered[max(fitting, 1) :]
    counts = _counts(Counter(row[2] for row in rest))
    return Group(Text(sums), _table_of(first), Text(f"... and {len(rest)} more: {counts}"))


def _rank(row: Sequence[str], telling: Collection[str]) -> int:
    """Returns 0 for what somebody has to look at, and more for what is fine.

    Args:
      row: of a process.
      telling: the processes that tell their user something: the end of one does not settle it.
    """
    name, _, state, *_, detail = row
    if name in telling:
        return 0
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
