"""Checks all machines before a launch, and reports what would go wrong on each."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import posixpath
import secrets
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from impala_tf.cluster import requirements
from impala_tf.cluster.inventory import Secret
from impala_tf.cluster.machines import connected, on_all
from impala_tf.cluster.node import probe
from impala_tf.cluster.plan import Plan
from impala_tf.cluster.runner import (
    ClusterError,
    CommandRunner,
    NotSetUpError,
    Running,
    answer_of,
    ask_agent,
)
from impala_tf.config import this_machine, user_commands
from impala_tf.config.addresses import host_port, split_host_port

PROBE = "".join(Path(each).read_text() for each in (this_machine.__file__, probe.__file__))
"""The program that looks at a machine, and all that it needs, as text."""
# A user's file in the current folder, such as random.py, must not hide Python's own module.
_PYTHONS_OWN_FIRST = "import sys; sys.path.sort(key=lambda folder: folder == ''); "
_GIB = 1 << 30
_STYLES = {"ok": "green", "warning": "yellow", "bad": "red"}
Level = Literal["ok", "warning", "bad"]
Address = tuple[str, int]


class Finding(NamedTuple):
    """The result of one check of a machine."""

    node: str
    subject: str
    level: Level
    detail: str


def examine(plan: Plan, known: Mapping[str, Secret]) -> list[Finding]:
    """Returns the findings about every machine of a plan, machine by machine.

    Args:
      plan: the machines and their processes.
      known: {name of the node: password}.
    """
    with connected(plan.nodes, known) as machines:
        checked = on_all(machines.reached(), lambda runner: _check(plan, runner))
        reached = _reach(plan, [r for r in machines.reached() if _has_python(checked[r.node.name])])
        answers = {**machines.found, **checked}
    findings = []
    for name, answer in answers.items():
        if isinstance(answer, list):
            findings += answer + [finding for finding in reached if finding.node == name]
        else:
            findings.append(Finding(name, "SSH", "bad", str(answer).removeprefix(f"{name}: ")))
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
    command = _probe_command(runner, task, question)
    done = runner.run(command, in_workdir=False)
    if done.status != 0:
        raise ClusterError(f"{runner.node.name}: cannot run {command[0]}: {done.last_line}")
    answer: dict[str, Any] = answer_of(runner.node, done)
    return answer


def _probe_command(runner: CommandRunner, task: str, question: Any) -> list[str]:
    python = runner.node.python
    if "/" in python and not python.startswith("~/"):  # it is run in the home folder
        python = posixpath.join(runner.node.workdir, python)
    # The program itself is sent: machines without the project must be able to run it.
    program = f"{_PYTHONS_OWN_FIRST}exec({PROBE!r})"
    return [python, "-c", program, task, json.dumps(question)]


def _level(is_bad: bool, is_doubtful: bool = False) -> Level:
    return "bad" if is_bad else "warning" if is_doubtful else "ok"


def _check(plan: Plan, runner: CommandRunner) -> list[Finding]:
    node, processes = runner.node, plan.on(runner.node)
    findings: list[Finding] = []

    def note(subject: str, level: Level, detail: str) -> None:
        findings.append(Finding(node.name, subject, level, detail.removeprefix(f"{node.name}: ")))

    if not node.is_local:
        note("SSH", "ok", "host key known, logged in")
    spread = [each.group for each in processes if each.group and each.group.is_spread]
    own_addresses = [group.hosts[group.number] for group in spread]
    set_up = f"run {user_commands.frontend('setup')} with the same --workers_csv_path"
    try:
        question = {"tmux_sess": plan.tmux_sess, "addresses": own_addresses}
        answer = ask_agent(runner, "check", question)
        if answer["foreign"]:  # learners connect to each other's own addresses
            note("project", "bad", f"no network interface there has {answer['foreign'][0]}")
        else:
            note("project", "ok", answer["workdir"])
    except ClusterError as error:
        note(
            "project",
            "bad",
            f"{error}; {set_up}" if isinstance(error, NotSetUpError) else f"{error}",
        )
    with_horovod = any(process.group for process in processes)
    pins = requirements.pinned(plan.role(node), with_horovod)
    folder = posixpath.join(node.workdir, node.logdir)
    before_s = time.time()
    try:
        facts = run_probe(runner, "look", {"packages": list(pins), "folder": folder})
    except ClusterError as error:
        note("Python", "bad", str(error))
        return findings
    oldest, newest = requirements.PYTHON_VERSIONS
    version = tuple(facts["python"])
    text = ".".join(map(str, version))
    is_supported = oldest <= version[:2] <= newest
    must = "" if is_supported else f"; must be {oldest[0]}.{oldest[1]} to {newest[0]}.{newest[1]}"
    note("Python", _level(not is_supported), text + must)
    wrong = [
        f"{name} {has or 'missing'} (must be {pins[name]})"
        for name, has in facts["versions"].items()
        if has != pins[name]
    ]
    packages = f"{'; '.join(wrong)}; {set_up}" if wrong else f"{len(pins)} as pinned"
    note("packages", _level(bool(wrong)), packages)
    # Any time between the question and the answer is right.
    skew_s = max(0.0, before_s - facts["unix_s"], facts["unix_s"] - time.time())
    advice = "; set it (timedatectl set-ntp true)" if skew_s > 60 else ""
    note("clock", _level(skew_s > 60, skew_s > 2), f"off by at least {skew_s:,.1f} s{advice}")
    cores = facts["cores"]
    note(
        "cores", _level(False, cores < len(processes)), f"{cores} for {len(processes)} process(es)"
    )
    needed_gib, memory_gib = plan.memory_gib(node), facts["memory_bytes"] / _GIB
    level = _level(memory_gib < 0.8 * needed_gib, memory_gib < 1.5 * needed_gib)
    note("memory", level, f"{memory_gib:.1f} GiB, {needed_gib:.2g} GiB or more needed")
    free_gib = facts["disk_bytes"] / _GIB
    if facts["writable"]:
        level = _level(free_gib < 0.5, free_gib < 5)
        note("disk", level, f"{free_gib:.1f} GiB free under {facts['folder']}")
    else:
        note("disk", "bad", f"{facts['folder']} is not writable")
    note("tmux", _level(not facts["tmux"]), "installed" if facts["tmux"] else "not installed")
    for host in own_addresses[:1]:
        with contextlib.suppress(ValueError):
            if ipaddress.ip_address(host).is_global:
                text = f"{host} is public, and traffic between learners is not encrypted"
                note("Gloo traffic", "warning", text)
    return findings


def _has_python(checked: Sequence[Finding] | ClusterError) -> bool:
    return not isinstance(checked, ClusterError) and not any(
        finding.subject == "Python" and finding.level == "bad" for finding in checked
    )


def _reach(plan: Plan, runners: Sequence[CommandRunner]) -> list[Finding]:
    """Listens on every learner's ports, and connects to them from every machine that needs them."""
    token = secrets.token_hex(16)
    served, wanted = _addresses(plan)
    findings: list[Finding] = []
    ports: dict[Address, int] = {}
    with contextlib.ExitStack() as listeners:
        for runner in runners:
            asked = served.get(runner.node.name)
            if not asked:
                continue
            name, question = runner.node.name, {"addresses": asked, "token": token}
            printed = b""
            try:
                command = _probe_command(runner, "listen", question)
                running = runner.start(command, in_workdir=False)
                listeners.callback(_end, running)
                printed = running.output.readline()
                answers = json.loads(printed)
            except (ClusterError, ValueError) as error:  # ValueError: it says what is wrong
                why = printed.decode(errors="replace").strip() or str(error)
                findings.append(Finding(name, "ports", "bad", why.removeprefix(f"{name}: ")))
                continue
            for address, (host, port, trouble) in zip(asked, answers, strict=True):
                # Gloo's ports are random, so a firewall must open all ports to learners.
                subject = f"port {host_port(host, port)}" if address[1] else "a port for Gloo"
                findings.append(Finding(name, subject, _level(bool(trouble)), trouble or "free"))
                if not trouble:
                    ports[address] = port

        def connect(runner: CommandRunner) -> dict[str, str]:
            want = [
                [host, ports[host, port]]
                for host, port in wanted[runner.node.name]
                if (host, port) in ports
            ]
            return run_probe(runner, "reach", {"addresses": want, "token": token})

        reached = on_all([each for each in runners if wanted.get(each.node.name)], connect)
    for name, troubles in reached.items():
        if isinstance(troubles, ClusterError):
            findings.append(Finding(name, "reaches learners", "bad", str(troubles)))
            continue
        for place, trouble in troubles.items():
            level = _level(bool(trouble))
            findings.append(Finding(name, f"reaches {place}", level, trouble or "yes"))
    return findings


def _end(running: Running) -> None:
    with contextlib.suppress(ClusterError):  # who cannot reach it says so
        running.finish()


def _addresses(plan: Plan) -> tuple[dict[str, list[Address]], dict[str, set[Address]]]:
    """Returns {node: where to listen} and {node: where to connect to}; port 0 is any port."""
    served: dict[str, list[Address]] = {}
    wanted: dict[str, set[Address]] = {}
    learners = list(map(split_host_port, plan.learner_hosts))
    for process in plan.processes:
        number = int(process.name.partition("-")[2])
        reached = wanted.setdefault(process.node, set())
        if not process.is_learner:
            reached.add(learners[number % len(learners)])
            continue
        listening = served.setdefault(process.node, [])
        listening.append(learners[number])
        if (group := process.group) is None:
            continue
        rendezvous = group.hosts[0], group.rendezvous_port
        if group.number == 0:
            listening.append(rendezvous)
        reached.add(rendezvous)
        if group.is_spread:
            listening.append((group.hosts[group.number], 0))
            reached |= {(host, 0) for host in group.hosts}
    return served, wanted
