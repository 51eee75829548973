"""Checks all machines before a launch, and reports what would go wrong on which of them."""

from __future__ import annotations

import contextlib
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

from frontend import fleet, probe, project, requirements
from frontend.errors import ClusterError
from frontend.machine import Machine, Running, in_workdir
from frontend.plan import Plan
from frontend.workers import Secret

_SOURCE = Path(probe.__file__)
_GIB = 1 << 30
_STYLES = {"ok": "green", "warning": "yellow", "bad": "red"}


class Finding(NamedTuple):
    """The result of one check of a machine."""

    place: str
    subject: str
    level: Literal["ok", "warning", "bad"]
    detail: str


def examine(plan: Plan, known: Mapping[str, Secret], accept_new_host_keys: bool) -> list[Finding]:
    """Returns the findings about every machine of a plan, machine by machine."""
    found = fleet.connect_each(plan, known, accept_new_host_keys)
    machines = {n: each for n, each in found.items() if not isinstance(each, ClusterError)}
    try:
        checked = fleet.try_all(
            machines.values(), lambda m: m.place.name, lambda m: _check(plan, m)
        )
        reached = _reach(plan, machines, checked)
    finally:
        fleet.close(found.values())
    findings = []
    for name, machine in found.items():
        seen = machine if isinstance(machine, ClusterError) else checked[name]
        if isinstance(seen, ClusterError):
            findings.append(Finding(name, "SSH", "bad", str(seen).removeprefix(f"{name}: ")))
            continue
        findings += seen + [finding for finding in reached if finding.place == name]
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


def run_probe(machine: Machine, python: str, task: str, question: Any) -> dict[str, Any]:
    """Runs a task of probe.py on a machine. Raises ClusterError if that fails."""
    done = machine.run(_probe_command(machine, python, task, question))
    if done.status != 0:
        raise ClusterError(f"{machine.place.name}: cannot run {python}: {done.last_line}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _probe_command(machine: Machine, python: str, task: str, question: Any) -> list[str]:
    if "/" in python:  # Not run inside the workdir, which may not exist yet.
        python = posixpath.join(machine.place.workdir, python)
    return [python, "-c", _SOURCE.read_text(encoding="utf-8"), task, json.dumps(question)]


def _check(plan: Plan, machine: Machine) -> list[Finding]:
    place, processes = machine.place, plan.on(machine.place)
    verdicts: list[_Verdict] = []
    if not place.is_local:
        verdicts = [("SSH", "ok", "host key known, logged in"), _project(machine)]
    groups = [process.group for process in processes if process.group]
    pins = requirements.pinned(plan.role(place), with_horovod=bool(groups))
    before_s = time.time()
    try:
        seen = run_probe(
            machine, place.python, "look", {"packages": list(pins), "folder": place.logdir}
        )
    except ClusterError as error:
        verdicts.append(("Python", "bad", str(error).removeprefix(f"{place.name}: ")))
    else:
        verdicts += [
            _python(seen),
            _packages(pins, seen["versions"]),
            _clock(before_s, seen["unix_s"], time.time()),
            _cores(len(processes), seen["cores"]),
            _memory(len(processes), seen["memory_bytes"]),
            _disk(seen),
            ("tmux", "ok", "installed") if seen["tmux"] else ("tmux", "bad", "not installed"),
        ]
        spread = [group for group in groups if group.local_size < group.size]
        verdicts += [_own_name(machine, group.host) for group in spread[:1]]
    return [Finding(place.name, *verdict) for verdict in verdicts]


_Checked = Mapping[str, list[Finding] | ClusterError]
_Verdict = tuple[str, Literal["ok", "warning", "bad"], str]


def _project(machine: Machine) -> _Verdict:
    try:
        differing = fleet.ask(machine, "frontend.project", [], project.manifest(), 60.0)
    except ClusterError:
        return "project", "bad", f"not in {machine.place.workdir}; run python -m frontend setup"
    if differing:
        text = f"{len(differing)} files differ, such as {differing[0]}"
        return "project", "bad", f"{text}; run python -m frontend setup"
    return "project", "ok", machine.place.workdir


def _own_name(machine: Machine, host: str) -> _Verdict:
    """Checks that a learner listens where the others will look for it; see frontend.own_name."""
    place = machine.place
    command = in_workdir(place, [place.python, "-m", "frontend.own_name", host])
    done = machine.run(command)
    return ("Gloo address", "bad", done.last_line) if done.status else ("Gloo address", "ok", host)


def _python(seen: dict[str, Any]) -> _Verdict:
    version = tuple(seen["python"])
    oldest, newest = requirements.PYTHON_VERSIONS
    text = ".".join(map(str, version))
    if oldest <= version[:2] <= newest:
        return "Python", "ok", text
    return "Python", "bad", f"{text}; must be {oldest[0]}.{oldest[1]} to {newest[0]}.{newest[1]}"


def _packages(pins: dict[str, str], versions: dict[str, str | None]) -> _Verdict:
    wrong = [f"{n} {versions[n] or 'missing'} (must be {v})" for n, v in pins.items()
             if versions[n] != v]  # fmt: skip
    if wrong:
        return "packages", "bad", f"{'; '.join(wrong)}; run python -m frontend setup"
    return "packages", "ok", f"{len(pins)} as pinned"


def _clock(before_s: float, there_s: float, after_s: float) -> _Verdict:
    """A time between the question and the answer counts as right."""
    skew_s = max(0.0, before_s - there_s, there_s - after_s)
    if skew_s > 60:
        return "clock", "bad", f"off by at least {skew_s:,.0f} s"
    return "clock", "warning" if skew_s > 2 else "ok", f"off by at least {skew_s:.1f} s"


def _cores(processes: int, cores: int) -> _Verdict:
    level: Literal["ok", "warning"] = "warning" if cores < processes else "ok"
    return "cores", level, f"{cores} for {processes} process(es)"


def _memory(processes: int, free: int) -> _Verdict:
    """A process takes about 0.5 GiB with few environments; large networks and batches take more."""
    each = free / _GIB / processes
    level: Literal["ok", "warning", "bad"] = (
        "bad" if each < 0.4 else "warning" if each < 1 else "ok"
    )
    return "memory", level, f"{free / _GIB:.1f} GiB free for {processes} process(es)"


def _disk(seen: dict[str, Any]) -> _Verdict:
    free = seen["disk_bytes"] / _GIB
    if not seen["writable"]:
        return "disk", "bad", f"{seen['folder']} is not writable"
    level: Literal["ok", "warning", "bad"] = (
        "bad" if free < 0.5 else "warning" if free < 5 else "ok"
    )
    return "disk", level, f"{free:.1f} GiB free under {seen['folder']}"


def _reach(plan: Plan, machines: Mapping[str, Machine], checked: _Checked) -> list[Finding]:
    """Listens on every learner's ports, and connects from every machine that will need them."""
    token = secrets.token_hex(16)
    usable = {n: m for n, m in machines.items() if _has_python(checked[n])}
    served, wanted = _addresses(plan)
    findings, open_ports = [], set()
    with contextlib.ExitStack() as listeners:
        for name in set(served) & set(usable):
            question = {"addresses": served[name], "token": token}
            for address, trouble in listeners.enter_context(
                _listening(usable[name], question)
            ).items():
                text = trouble or "free"
                level: Literal["ok", "bad"] = "bad" if trouble else "ok"
                findings.append(Finding(name, f"port {address}", level, text))
                open_ports |= set() if trouble else {address}

        def connect(machine: Machine) -> dict[str, str]:
            want = [a for a in wanted[machine.place.name] if f"{a[0]}:{a[1]}" in open_ports]
            question = {"addresses": want, "token": token}
            return run_probe(machine, machine.place.python, "reach", question)

        callers = [machine for name, machine in usable.items() if wanted.get(name)]
        answers = fleet.try_all(callers, lambda m: m.place.name, connect)
    for name, answer in answers.items():
        if isinstance(answer, ClusterError):
            findings.append(Finding(name, "reaches learners", "bad", str(answer)))
            continue
        for address, trouble in answer.items():
            level = "bad" if trouble else "ok"
            findings.append(Finding(name, f"reaches {address}", level, trouble or "yes"))
    return findings


def _has_python(checked: list[Finding] | ClusterError) -> bool:
    return not isinstance(checked, ClusterError) and not any(
        finding.subject == "Python" and finding.level == "bad" for finding in checked
    )


def _addresses(plan: Plan) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
    """Returns {place: [[host, port]] to listen on} and {place: [[host, port]] to connect to}."""
    served: dict[str, list[Any]] = {}
    wanted: dict[str, list[Any]] = {}
    split = [host.rpartition(":") for host in plan.learner_hosts]
    learners = [[host.strip("[]"), int(port)] for host, _, port in split]
    for process in plan.processes:
        job, _, number = process.name.partition("-")
        reached = wanted.setdefault(process.place, [])
        if job == "actor":
            own = learners[int(number) % len(learners)]
            reached += [] if own in reached else [own]
            continue
        served.setdefault(process.place, []).append(learners[int(number)])
        if process.group is not None:
            rendezvous = [process.group.rendezvous_host, process.group.rendezvous_port]
            if process.group.rank == 0:
                served[process.place].append(rendezvous)
            elif rendezvous not in reached:
                reached.append(rendezvous)
    return served, wanted


@contextlib.contextmanager
def _listening(machine: Machine, question: Any) -> Iterator[dict[str, str]]:
    """Listens on a machine until the block ends; yields {"host:port": what is wrong, or ''}."""
    command = _probe_command(machine, machine.place.python, "listen", question)
    running: Running = machine.start(command)
    try:
        line = next(running.lines(), "")
        yield json.loads(line) if line.startswith("{") else {"": line.strip() or "no answer"}
    finally:
        running.finish()
