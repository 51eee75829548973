"""Checks all machines before a launch: what it would refuse, and what would go wrong later."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import posixpath
import secrets
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from impala_tf.cluster import requirements
from impala_tf.cluster.inventory import Secret
from impala_tf.cluster.launch import check
from impala_tf.cluster.machines import connected, on_all
from impala_tf.cluster.plan import Plan
from impala_tf.cluster.runner import ClusterError, CommandRunner, probe_command, run_probe
from impala_tf.cluster.setup import look
from impala_tf.config.addresses import host_port
from impala_tf.printable import columns

_STYLES = {"ok": "green", "warning": "yellow", "bad": "red"}
_GIB = 1 << 30
Finding = tuple[str, str, str]
"""What was checked, "ok", "warning" or "bad", and the detail."""
Address = tuple[str, int]


def examine(plan: Plan, passwords: Mapping[str, Secret], logdir: Path, csv: str) -> int:
    """Prints findings about every machine of a plan; returns 1 if any is bad, else 0."""
    with connected(plan.nodes, passwords) as machines:
        checked = on_all(machines.reached(), lambda runner: _check(plan, runner, logdir, csv))
        usable = [each for each in machines.reached() if isinstance(checked[each.name], list)]
        reached = _reach(plan, usable)
        answers = {**machines.found, **checked}
    rows = [("machine", "check", "result", "detail")]
    for name, answer in answers.items():
        findings = [*answer, *reached[name]] if isinstance(answer, list) else [_bad("SSH", answer)]
        rows += [(name, *each[:2], each[2].removeprefix(f"{name}: ")) for each in findings]
    for row, line in zip(rows, columns(rows).splitlines(), strict=True):
        Console().print(Text(line, _STYLES.get(row[2], "bold")), soft_wrap=True)
    levels = [level for _, _, level, _ in rows]
    print(f"{levels.count('bad')} bad, {levels.count('warning')} warning(s)")
    return 1 if "bad" in levels else 0


def _bad(subject: str, error: object) -> Finding:
    return subject, "bad", str(error)


def _level(is_bad: bool, is_doubtful: bool = False) -> str:
    return "bad" if is_bad else "warning" if is_doubtful else "ok"


def _check(plan: Plan, runner: CommandRunner, logdir: Path, csv: str) -> list[Finding]:
    """Returns what a launch would refuse, and what the machine has. Raises ClusterError."""
    node = runner.node
    try:
        findings = [("launch", "ok", check(plan, runner, logdir, csv)["workdir"])]
    except ClusterError as error:
        findings = [_bad("launch", line) for line in error.problems]
    pins = requirements.pinned(plan.role(node), any(each.group for each in plan.on(node)))
    before_s = time.time()
    try:
        has = look(runner, pins, posixpath.join(node.workdir, node.logdir))
    except ClusterError as error:
        return [*findings, _bad("Python", error)]
    # Any time between the question and the answer is right.
    skew_s = max(0.0, before_s - has["unix_s"], has["unix_s"] - time.time())
    wrong, needed_gib = has["wrong"], plan.memory_gib(node)
    memory_gib, free_gib = has["memory_bytes"] / _GIB, has["disk_bytes"] / _GIB
    few = memory_gib < 0.8 * needed_gib, memory_gib < 1.5 * needed_gib
    full = not has["writable"] or free_gib < 0.5, free_gib < 5
    disk = f"{free_gib:.1f} GiB free under" if has["writable"] else "cannot write to"
    for host in (host for host, port in plan.served_by(node) if not port and _is_public(host)):
        text = f"{host} is public, and traffic between learners is not encrypted"
        findings.append(("Gloo traffic", "warning", text))
    return [
        *findings,
        ("packages", _level(bool(wrong)), "; ".join(wrong) or f"{len(pins)} as pinned"),
        ("clock", _level(skew_s > 60, skew_s > 2), f"off by at least {skew_s:,.1f} s"),
        ("memory", _level(*few), f"{memory_gib:.1f} GiB; it takes {needed_gib:.2g} GiB or more"),
        ("disk", _level(*full), f"{disk} {has['folder']}"),
    ]


def _is_public(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_global
    except ValueError:
        return False


def _reach(plan: Plan, runners: Sequence[CommandRunner]) -> dict[str, list[Finding]]:
    """Listens on every learner's ports, and connects to them from every machine that needs them."""
    token = secrets.token_hex(16)
    findings: dict[str, list[Finding]] = defaultdict(list)
    ports: dict[Address, int] = {}
    with contextlib.suppress(ClusterError), contextlib.ExitStack() as listeners:
        for runner in runners:
            if not (asked := plan.served_by(runner.node)):
                continue
            command = probe_command(runner.node, "listen", {"addresses": asked, "token": token})
            try:
                running = runner.start(command, in_workdir=False)
                listeners.callback(running.finish)
                answers = json.loads(running.output.readline())
            except (ClusterError, ValueError) as error:
                findings[runner.name].append(_bad("ports", error))
                continue
            for address, (host, port, trouble) in zip(asked, answers, strict=True):
                # Gloo's ports are random, so a firewall must open all ports to learners.
                subject = f"port {host_port(host, port)}" if address[1] else "a port for Gloo"
                findings[runner.name].append((subject, _level(trouble), trouble or "free"))
                if not trouble:
                    ports[address] = port

        def connect(runner: CommandRunner) -> list[Finding]:
            places = [(at[0], ports[at]) for at in plan.reached_from(runner.node) if at in ports]
            troubles = run_probe(runner, "reach", {"addresses": places, "token": token})
            return [(f"reaches {n}", _level(each), each or "yes") for n, each in troubles.items()]

        for name, answer in on_all(runners, connect).items():
            findings[name] += answer if isinstance(answer, list) else [_bad("reaches", answer)]
    return findings
