"""Checks all machines before a launch, and reports what would go wrong on each."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import posixpath
import secrets
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from impala_tf.config import this_machine, user_commands
from impala_tf.config.addresses import host_port, split_host_port
from impala_tf.frontend import requirements
from impala_tf.frontend.inventory import Secret
from impala_tf.frontend.machines import connected, on_all
from impala_tf.frontend.node import probe
from impala_tf.frontend.plan import NodeSpec, Plan
from impala_tf.frontend.runner import (
    ClusterError,
    CommandRunner,
    NotSetUpError,
    answer_of,
    ask_agent,
)

PROBE = "".join(Path(each).read_text() for each in (this_machine.__file__, probe.__file__))
"""The program that looks at a machine, and all that it needs, as text."""
PYTHONS_OWN_FIRST = "import sys; sys.path.sort(key=lambda folder: folder == ''); "
"""The beginning of a program for `python -c`, which searches the current folder first: a user's
file there, such as random.py, must not hide Python's own module of that name.
"""
_GIB = 1 << 30
_STYLES = {"ok": "green", "warning": "yellow", "bad": "red"}
_Level = Literal["ok", "warning", "bad"]


class Finding(NamedTuple):
    """The result of one check of a machine."""

    node: str
    subject: str
    level: _Level
    detail: str


_Verdict = tuple[str, _Level, str]
_Checked = Mapping[str, list[Finding] | ClusterError]


def examine(plan: Plan, known: Mapping[str, Secret]) -> list[Finding]:
    """Returns the findings about every machine of a plan, machine by machine."""
    with connected(plan.nodes, known) as machines:
        checked = on_all(machines.reached(), lambda runner: _check(plan, runner))
        reached = _reach(plan, machines.reached(), checked)
        connections = dict(machines.found)
    findings = []
    for name, connection in connections.items():
        result = connection if isinstance(connection, ClusterError) else checked[name]
        if isinstance(result, ClusterError):
            findings.append(Finding(name, "SSH", "bad", str(result).removeprefix(f"{name}: ")))
            continue
        findings += result + [finding for finding in reached if finding.node == name]
    return findings


def show(findings: list[Finding], console: Console) -> int:
    """Prints the findings as a table; returns 1 if any is bad, else 0."""
    table = Table("machine", "check", "result", box=None, pad_edge=False)
    table.add_column("detail", overflow="fold")
    for finding in findings:
        table.add_row(*map(Text, finding), style=_STYLES[finding.level])  # not as markup
    console.print(table)
    bad = sum(finding.level == "bad" for finding in findings)
    console.print(f"{bad} bad, {sum(f.level == 'warning' for f in findings)} warning(s)")
    return 1 if bad else 0


def run_probe(runner: CommandRunner, task: str, question: Any) -> dict[str, Any]:
    """Runs a task of probe.py on a machine. Raises ClusterError if that fails."""
    done = runner.run(_probe_command(runner, task, question), in_workdir=False)
    if done.status != 0:
        python = _python_of(runner.node)
        raise ClusterError(f"{runner.node.name}: cannot run {python}: {done.last_line}")
    answer: dict[str, Any] = answer_of(runner.node, done)
    return answer


def _probe_command(runner: CommandRunner, task: str, question: Any) -> list[str]:
    # The program itself is sent: machines without the project must be able to run it.
    program = f"{PYTHONS_OWN_FIRST}exec({PROBE!r})"
    return [_python_of(runner.node), "-c", program, task, json.dumps(question)]


def _python_of(node: NodeSpec) -> str:
    """Returns the interpreter of a machine, for a command in the home folder."""
    if "/" not in node.python or node.python.startswith("~/"):
        return node.python
    return posixpath.join(node.workdir, node.python)


def _check(plan: Plan, runner: CommandRunner) -> list[Finding]:
    node, processes = runner.node, plan.on(runner.node)
    verdicts = [_project(plan, runner)]
    if not node.is_local:
        verdicts = [("SSH", "ok", "host key known, logged in"), *verdicts]
    groups = [process.group for process in processes if process.group]
    pins = requirements.pinned(plan.role(node), with_horovod=bool(groups))
    before_s = time.time()
    folder = node.logdir if node.logdir.startswith("/") else f"{node.workdir}/{node.logdir}"
    try:
        facts = run_probe(runner, "look", {"packages": list(pins), "folder": folder})
    except ClusterError as error:
        verdicts.append(("Python", "bad", str(error).removeprefix(f"{node.name}: ")))
        return [Finding(node.name, *verdict) for verdict in verdicts]
    verdicts += [
        _python(facts),
        _packages(pins, facts["versions"]),
        _clock(before_s, facts["unix_s"], time.time()),
        _cores(len(processes), facts["cores"]),
        _memory(plan.memory_gib(node), facts["memory_bytes"]),
        _disk(facts),
        ("tmux", "ok", "installed") if facts["tmux"] else ("tmux", "bad", "not installed"),
    ]
    for group in [each for each in groups if each.is_spread][:1]:
        verdicts += _public(group.hosts[group.number])
    return [Finding(node.name, *verdict) for verdict in verdicts]


def _project(plan: Plan, runner: CommandRunner) -> _Verdict:
    node = runner.node
    spread = [each.group for each in plan.on(node) if each.group and each.group.is_spread]
    addresses = [group.hosts[group.number] for group in spread]
    question = {"tmux_sess": plan.tmux_sess, "addresses": addresses}
    try:
        answer = ask_agent(runner, "check", question)
    except ClusterError as error:
        text = str(error).removeprefix(f"{node.name}: ")
        advice = f"; run {_set_up()}" if isinstance(error, NotSetUpError) else ""
        return "project", "bad", text + advice
    if answer["foreign"]:  # learners connect to each other's own addresses
        return "project", "bad", f"no network interface there has {answer['foreign'][0]}"
    return "project", "ok", answer["workdir"]


def _public(host: str) -> list[_Verdict]:
    with contextlib.suppress(ValueError):
        if ipaddress.ip_address(host).is_global:
            text = f"{host} is public, and traffic between learners is not encrypted"
            return [("Gloo traffic", "warning", text)]
    return []


def _python(seen: dict[str, Any]) -> _Verdict:
    version = tuple(seen["python"])
    oldest, newest = requirements.PYTHON_VERSIONS
    text = ".".join(map(str, version))
    if oldest <= version[:2] <= newest:
        return "Python", "ok", text
    return "Python", "bad", f"{text}; must be {oldest[0]}.{oldest[1]} to {newest[0]}.{newest[1]}"


def _set_up() -> str:
    return f"{user_commands.frontend('setup')} with the same --workers_csv_path"


def _packages(pins: dict[str, str], versions: dict[str, str | None]) -> _Verdict:
    mismatches = [f"{n} {versions[n] or 'missing'} (must be {v})" for n, v in pins.items()
             if versions[n] != v]  # fmt: skip
    if mismatches:
        return "packages", "bad", f"{'; '.join(mismatches)}; run {_set_up()}"
    return "packages", "ok", f"{len(pins)} as pinned"


def _clock(before_s: float, there_s: float, after_s: float) -> _Verdict:
    """Checks a clock: any time between the question and the answer is right."""
    skew_s = max(0.0, before_s - there_s, there_s - after_s)
    if skew_s > 60:
        advice = "set it (timedatectl set-ntp true)"
        return "clock", "bad", f"wrong by at least {skew_s:,.0f} s; {advice}"
    return "clock", "warning" if skew_s > 2 else "ok", f"off by at least {skew_s:.1f} s"


def _cores(processes: int, cores: int) -> _Verdict:
    return "cores", "warning" if cores < processes else "ok", f"{cores} for {processes} process(es)"


def _memory(needed_gib: float, has: int) -> _Verdict:
    share = has / _GIB / needed_gib
    level: _Level = "bad" if share < 0.8 else "warning" if share < 1.5 else "ok"
    return "memory", level, f"{has / _GIB:.1f} GiB, {needed_gib:.2g} GiB or more needed"


def _disk(seen: dict[str, Any]) -> _Verdict:
    free = seen["disk_bytes"] / _GIB
    if not seen["writable"]:
        return "disk", "bad", f"{seen['folder']} is not writable"
    level: _Level = "bad" if free < 0.5 else "warning" if free < 5 else "ok"
    return "disk", level, f"{free:.1f} GiB free under {seen['folder']}"


def _reach(plan: Plan, runners: list[CommandRunner], checked: _Checked) -> list[Finding]:
    """Listens on every learner's ports, and connects to them from every machine that needs them."""
    token = secrets.token_hex(16)
    usable = {r.node.name: r for r in runners if _has_python(checked[r.node.name])}
    served, wanted = _addresses(plan)
    findings, open_ports = [], []
    with contextlib.ExitStack() as listeners:
        for name in set(served) & set(usable):
            question = {"addresses": served[name], "token": token}
            answers = listeners.enter_context(_listening(usable[name], question))
            for (host, asked_port), (_, port, trouble) in zip(served[name], answers, strict=True):
                subject = "a port for Gloo" if asked_port == 0 else f"port {host_port(host, port)}"
                level: _Level = "bad" if trouble else "ok"
                findings.append(Finding(name, subject, level, trouble or "free"))
                open_ports += [] if trouble else [(host, asked_port, port)]

        def connect(runner: CommandRunner) -> dict[str, str]:
            want = [[host, port] for host, asked_port, port in open_ports
                    if (host, asked_port) in wanted[runner.node.name]]  # fmt: skip
            return run_probe(runner, "reach", {"addresses": want, "token": token})

        callers = [runner for name, runner in usable.items() if wanted.get(name)]
        reached = on_all(callers, connect)
    for name, troubles in reached.items():
        if isinstance(troubles, ClusterError):
            findings.append(Finding(name, "reaches learners", "bad", str(troubles)))
            continue
        for address, trouble in troubles.items():
            level = "bad" if trouble else "ok"
            findings.append(Finding(name, f"reaches {address}", level, trouble or "yes"))
    return findings


def _has_python(checked: list[Finding] | ClusterError) -> bool:
    return not isinstance(checked, ClusterError) and not any(
        finding.subject == "Python" and finding.level == "bad" for finding in checked
    )


def _addresses(
    plan: Plan,
) -> tuple[dict[str, list[tuple[str, int]]], dict[str, set[tuple[str, int]]]]:
    """Returns {node: (host, port) to listen on} and {node: (host, port) to connect to}.

    Port 0 is any port: Gloo's ports are random, so a firewall must open all ports to learners.
    """
    served: dict[str, list[tuple[str, int]]] = {}
    wanted: dict[str, set[tuple[str, int]]] = {}
    learners = list(map(split_host_port, plan.learner_hosts))
    for process in plan.processes:
        _, _, number = process.name.partition("-")
        reached = wanted.setdefault(process.node, set())
        if not process.is_learner:
            reached.add(learners[int(number) % len(learners)])
            continue
        listening = served.setdefault(process.node, [])
        listening.append(learners[int(number)])
        group = process.group
        if group is None:
            continue
        rendezvous = group.hosts[0], group.rendezvous_port
        if group.number == 0:
            listening.append(rendezvous)
        reached.add(rendezvous)
        if group.is_spread:
            listening.append((group.hosts[group.number], 0))
            reached |= {(host, 0) for host in group.hosts}
    return served, wanted


@contextlib.contextmanager
def _listening(runner: CommandRunner, question: Any) -> Iterator[list[tuple[str, int, str]]]:
    """Listens on a machine until the block ends; yields (host, port, problem or '')."""
    with contextlib.ExitStack() as listening:
        printed = b""
        try:
            running = runner.start(_probe_command(runner, "listen", question), in_workdir=False)
            # Who cannot reach it says so.
            listening.enter_context(contextlib.suppress(ClusterError))
            listening.callback(running.finish)
            printed = running.output.readline()
            answers = [tuple(answer) for answer in json.loads(printed)]
        except (ClusterError, ValueError) as error:  # ValueError: it has printed what is wrong
            said = printed.decode(errors="replace").strip() or str(error)
            problem = said.removeprefix(f"{runner.node.name}: ")
            answers = [(host, port, problem) for host, port in question["addresses"]]
        yield answers
