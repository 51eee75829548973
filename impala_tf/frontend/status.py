"""`status` and `logs`: what a launched run does, seen from any terminal."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from impala_tf.config import ConfigError, user_commands
from impala_tf.frontend.connection import CommandRunner, until_input_ends
from impala_tf.frontend.errors import ClusterError
from impala_tf.frontend.look import Look, Status, look
from impala_tf.frontend.node.state import log_path, supervisor_log
from impala_tf.frontend.parallel import Machines, connected
from impala_tf.frontend.plan import NodeSpec
from impala_tf.frontend.record import Record, load
from impala_tf.frontend.ssh_login import SshConnector
from impala_tf.machine.supervision import OVER

_COLUMNS = ("process", "host", "state", "uptime", "restarts", "agent steps/s", "parameter lag",
            "last contact", "detail")  # fmt: skip
_SUPERVISOR = "supervisor"
_RECENT_BYTES = 20_000
_POLL_S = 2.0
_FOLLOW_S = 2.0
_STYLES = {"running": "green", "finished": "green", "failed": "red", "refused": "red"}
Answers = Mapping[str, Look | ClusterError | None]
"""{name of a machine: what it says, why it says nothing, or None while it is being asked}."""


def show_status(logdir: Path, console: Console, follow: bool = False) -> int:
    """Prints the state of every process; returns 1 if a machine is unreachable, else 0.

    On a terminal, the rows of machines that answer are shown before the slow ones have answered.
    With `follow`, shows it again and again until Ctrl-C.
    """
    record = load(logdir)
    machines = Machines(SshConnector(record.passwords(), False))
    with Live(console=console, auto_refresh=False, transient=True) as live:
        answers = _ask_all(record, machines, console, live)
        while follow:
            live.update(_table_that_fits(record, answers, console), refresh=True)
            time.sleep(_FOLLOW_S)
            record = load(logdir)
            answers = _ask_all(record, machines, console, live, answers)
    machines.close()
    console.print(_table(record, answers))
    orphans = _orphans(record, answers)
    if orphans:
        stop = user_commands.frontend("stop", f"--logdir={logdir}")
        line = f"no learner is left, but {orphans} actor(s) wait for one; stop them with {stop}"
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    lost = [str(each) for each in answers.values() if isinstance(each, ClusterError)]
    for problem in lost:
        console.print(problem, markup=False, highlight=False, soft_wrap=True)
    return 1 if lost else 0


def _ask_all(
    record: Record, machines: Machines, console: Console, live: Live, before: Answers | None = None
) -> Answers:
    """Looks at all machines in parallel; meanwhile shows what is known already."""

    def ask(node: NodeSpec) -> Look:
        runner = machines.found.get(node.name)
        if runner is None or isinstance(runner, ClusterError):
            runner = machines.connect([node])[node.name]
        if isinstance(runner, ClusterError):
            raise runner
        return look(runner, record)

    with ThreadPoolExecutor(max(1, len(record.plan.nodes))) as pool:
        asked = {node.name: pool.submit(ask, node) for node in record.plan.nodes}
        while not all(each.done() for each in asked.values()):
            if console.is_terminal:
                known = _answers(asked, before)
                live.update(_table_that_fits(record, known, console), refresh=True)
            time.sleep(0.05)
    return _answers(asked, before)


def follow_logs(logdir: Path, name: str, follow: bool, host: str | None = None) -> int:
    """Prints the end of a log. With `follow`, also what is added until the process is over.

    Args:
      logdir: the run's, on this machine.
      name: a process, or "supervisor".
      follow: whether to go on.
      host: the machine whose supervisor is meant, if there are several.
    """
    record = load(logdir)
    node = _machine_with(record, name, host)
    with connected([node], record.passwords()) as machines:
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


def _machine_with(record: Record, name: str, host: str | None) -> NodeSpec:
    """Returns the machine that has a log. Raises ConfigError if there is none, or are several."""
    plan = record.plan
    machines = ", ".join(node.name for node in plan.nodes)
    if host is not None and name != _SUPERVISOR:
        raise ConfigError(f"{host}: name a machine only after {_SUPERVISOR}")
    if name != _SUPERVISOR:
        process = next((p for p in plan.processes if p.name == name), None)
        if process is None:
            names = ", ".join(p.name for p in plan.processes)
            raise ConfigError(f"{name}: no such process; this run has {names}")
        return plan.node(process.node)
    if host is None and len(plan.nodes) > 1:
        raise ConfigError(f"{_SUPERVISOR}: each machine has one; add one of {machines}")
    found = [node for node in plan.nodes if host in (None, node.name, node.ssh_host)]
    if not found:
        raise ConfigError(f"{host}: no such machine; this run has {machines}")
    return found[0]


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


def _answers(asked: Mapping[str, Future[Look]], before: Answers | None) -> Answers:
    found: dict[str, Look | ClusterError | None] = {}
    for name, future in asked.items():
        if not future.done():
            found[name] = (before or {}).get(name)
            continue
        failure = future.exception()
        if failure is not None and not isinstance(failure, ClusterError):
            raise failure
        found[name] = failure if isinstance(failure, ClusterError) else future.result()
    return found


def _table(record: Record, answers: Answers) -> Table:
    return _table_of(_rows(record, answers))


def _table_that_fits(record: Record, answers: Answers, console: Console) -> Table | Group:
    """Returns the table, without rows that the terminal has no lines for: most of them are fine."""
    rows = _rows(record, answers)
    # A table that is wider than the terminal takes several lines a row.
    lines_of_a_row = -(-console.width // max(1, shutil.get_terminal_size().columns))
    fitting = (console.height - 1) // lines_of_a_row - 2  # the header, and the line below
    if len(rows) <= fitting + 1:
        return _table_of(rows)
    ordered = sorted(rows, key=_rank)
    shown, rest = ordered[: max(fitting, 1)], ordered[max(fitting, 1) :]
    words = Counter(row[2] for row in rest)
    counts = ", ".join(f"{count} {word}" for word, count in words.most_common())
    return Group(_table_of(shown), Text(f"... and {len(rest)} more: {counts}"))


def _rank(row: Sequence[str]) -> int:
    """Returns 0 for what somebody has to look at, and more for what is fine."""
    name, _, state, *_, detail = row
    if state in ("finished", "stopped"):
        return 3
    if state == "running" and not detail:
        return 1 if name.startswith("learner-") else 2
    return 0


def _table_of(rows: Iterable[Sequence[str]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in _COLUMNS:
        table.add_column(column, no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row), style=_STYLES.get(row[2]))  # not as markup
    return table


def _rows(record: Record, answers: Answers) -> list[list[str]]:
    """Returns the cells of every process."""
    rates, contacts, troubles = _rates(answers), _contacts(answers), _actors_troubles(answers)
    found = []
    for process in record.plan.processes:
        answer = answers[process.node]
        if answer is None:
            row = ["asking ...", "", "", "", "", "", ""]
        elif isinstance(answer, ClusterError):
            row = ["unknown", "", "", "", "", "", "unreachable"]
        else:
            row = _row(answer, process.name, rates, contacts)
            row[-1] = row[-1] or troubles.get(process.name, "")
        found.append([process.name, process.node, *row])
    return found


def _row(
    seen: Look,
    name: str,
    rates: Mapping[str, tuple[str, str]],
    contacts: Mapping[str, str],
) -> list[str]:
    state = seen.state.processes.get(name) if seen.state is not None else None
    if state is None:
        return ["not started", "", "", "", "", "", ""]
    word = "lost" if seen.is_silent and state.state not in (*OVER, "left") else state.state
    up_s = None
    if word == "running" and state.started_unix_s is not None:
        up_s = seen.now_unix_s - state.started_unix_s
    row = [word, _duration(up_s), str(state.restarts)]
    if word == "lost":
        return [*row, "", "", "", "the machine has rebooted" if seen.has_rebooted
                else "its supervisor is silent"]  # fmt: skip
    if word != "running":
        return [*row, "", "", "", state.detail]
    detail = _trouble(seen, name) or state.detail
    return [*row, *rates.get(name, ("", "")), contacts.get(name, ""), detail]


def _trouble(seen: Look, name: str) -> str:
    """Returns what a learner says is wrong."""
    statuses = {f"learner-{rank}": status for rank, status in seen.statuses.items()}
    status = statuses.get(name, {})
    found = _away(status, seen.now_unix_s)
    if since_s := status.get("starving_since_unix_s"):
        found.append(f"starving for {_duration(seen.now_unix_s - since_s)}: no unrolls")
    if refused := status.get("refused_actor"):
        found.append(refused)
    if trouble := status.get("storage_trouble"):
        found.append(
            f"{trouble['text']} (for {_duration(seen.now_unix_s - trouble['since_unix_s'])})"
        )
    return "; ".join(found)


def _away(status: Status, now_unix_s: float) -> list[str]:
    """Returns a line if learners of the run are away."""
    away = status.get("away_learners") or []
    if not away:
        return []
    here = status["num_learners"]
    who = ", ".join(
        f"learner-{each['learner']} (for {_duration(max(0.0, now_unix_s - each['since_unix_s']))})"
        for each in away
    )
    return [f"training with {here} of {here + len(away)} learners; away: {who}"]


def _actors_troubles(answers: Answers) -> dict[str, str]:
    """Returns {name: what keeps an actor from acting}, as the learners say."""
    return {
        actor["name"]: actor.get("trouble", "")
        for seen in _looks(answers)
        for status in seen.statuses.values()
        for actor in status["actors"]
    }


def _looks(answers: Answers) -> list[Look]:
    return [each for each in answers.values() if isinstance(each, Look)]


def _rates(answers: Answers) -> dict[str, tuple[str, str]]:
    """Returns {name: (agent steps/s, parameter lag)}, as the learners say."""
    found: dict[str, tuple[str, str]] = {}
    for seen in _looks(answers):
        for status in seen.statuses.values():
            found.update(_rates_of(status))
    return found


def _rates_of(status: Status) -> dict[str, tuple[str, str]]:
    """Learner 0 knows the rates of all learners."""
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


def _contacts(answers: Answers) -> dict[str, str]:
    """Returns how long ago learners and actors were last heard from, in words."""
    found = {}
    for seen in _looks(answers):
        for rank, status in seen.statuses.items():
            heard = {actor["name"]: actor["last_contact_unix_s"] for actor in status["actors"]}
            heard[f"learner-{rank}"] = status["updated_unix_s"]
            for name, unix_s in heard.items():
                found[name] = f"{_duration(max(0.0, seen.now_unix_s - unix_s))} ago"
    return found


def _orphans(record: Record, answers: Answers) -> int:
    """Returns how many actors still run although every learner is over; 0 if that is not certain.

    With --detach nothing stops them. An actor cannot tell a learner that is over from one that is
    unreachable for a while, so it keeps waiting.
    """
    alive = 0
    for process in record.plan.processes:
        seen = answers[process.node]
        if not isinstance(seen, Look):
            return 0
        state = seen.state.processes.get(process.name) if seen.state is not None else None
        is_over = state is not None and state.state in OVER
        if not process.is_learner:
            alive += state is not None and not is_over and not seen.is_silent
        elif not is_over:
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
