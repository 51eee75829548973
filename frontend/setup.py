"""Copies the project to the machines of a workers CSV and installs its packages there."""

from __future__ import annotations

import functools
import secrets
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from frontend import fleet, project, requirements
from frontend.doctor import run_probe
from frontend.errors import ClusterError
from frontend.machine import Machine, in_workdir
from frontend.plan import REMOTE_PYTHON, Plan
from frontend.requirements import Role
from frontend.workers import Secret

Report = Callable[[float, str], None]
"""Called with the share of the work that is done, 0 to 1, and what is being done."""

_VENV = REMOTE_PYTHON.removesuffix("/bin/python")
_COPIED = 0.2  # share of the progress bar that copying takes
_INSTALL_LINES = 200  # about as many as pip prints


def set_up(
    plan: Plan,
    known: Mapping[str, Secret],
    accept_new_host_keys: bool,
    console: Console,
    root: Path = project.ROOT,
) -> int:
    """Sets up all machines of a plan in parallel; returns 1 if that fails for any, else 0."""
    found = fleet.connect_each(plan, known, accept_new_host_keys)
    column = functools.partial(TextColumn, markup=False)
    columns = (column("{task.fields[place]}"), BarColumn(), column("{task.description}"))
    results: dict[str, str | ClusterError] = {}
    try:
        with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
            tasks = {n: progress.add_task("waiting", total=1.0, place=n) for n in found}

            # Learners first: in a shared folder, their packages are enough for actors too.
            ordered = sorted(plan.places, key=lambda place: plan.role(place) == "actor")
            leaders = _leaders({place.name: found[place.name] for place in ordered})
            done = {name: threading.Event() for name in found}

            def work(name: str) -> str:
                try:
                    if leaders.get(name, name) != name:
                        done[leaders[name]].wait()
                    return work_alone(name)
                finally:
                    done[name].set()

            def work_alone(name: str) -> str:
                machine = found[name]
                if isinstance(machine, ClusterError):
                    progress.update(tasks[name], description="cannot connect")
                    raise machine

                def report(share: float, text: str) -> None:
                    progress.update(tasks[name], completed=share, description=text)

                role = plan.role(machine.place)
                with_horovod = any(process.group for process in plan.on(machine.place))
                try:
                    text = set_up_machine(machine, root, role, with_horovod, report)
                except ClusterError:
                    report(0.0, "failed")
                    raise
                report(1.0, "ready")
                return text

            # Machines that wait for another come last, or they could fill the pool and block it.
            names = sorted(found, key=lambda name: leaders.get(name, name) != name)
            results = fleet.try_all(names, str, work)
    finally:
        fleet.close(found.values())
    for name, result in results.items():
        text = str(result) if isinstance(result, ClusterError) else f"{name}: {result}"
        console.print(text, markup=False, highlight=False, soft_wrap=True)
    return 1 if any(isinstance(result, ClusterError) for result in results.values()) else 0


def _leaders(found: Mapping[str, Machine | ClusterError]) -> dict[str, str]:
    """Returns {machine: the machine that sets up its folder}.

    Machines with their home on a file server share one folder, and the first of them sets it up.
    """
    machines = {n: m for n, m in found.items() if not isinstance(m, ClusterError)}
    remote = {n: m for n, m in machines.items() if not m.place.is_local}
    numbers = {name: str(number) for number, name in enumerate(remote)}
    mark = f".setup-{secrets.token_hex(8)}-"

    def put(machine: Machine) -> None:
        machine.write(f"{machine.place.workdir}/{mark}{numbers[machine.place.name]}", b"")

    def visible(machine: Machine) -> list[int]:
        names = machine.run(["ls", "-A", machine.place.workdir]).stdout.splitlines()
        return [int(name.removeprefix(mark)) for name in names if name.startswith(mark)]

    def remove(machine: Machine) -> None:
        path = f"{machine.place.workdir}/{mark}{numbers[machine.place.name]}"
        machine.run(["rm", "-f", path])

    fleet.try_all(remote.values(), lambda m: m.place.name, put)
    marks = fleet.try_all(remote.values(), lambda m: m.place.name, visible)
    fleet.try_all(remote.values(), lambda m: m.place.name, remove)
    ordered = list(remote)
    return {
        name: ordered[min(seen)] if not isinstance(seen, ClusterError) and seen else name
        for name, seen in marks.items()
    }


def set_up_machine(
    machine: Machine, root: Path, role: Role, with_horovod: bool, report: Report
) -> str:
    """Sets up a machine; returns one line about it.

    Copies the files that differ, creates a virtual environment unless the CSV names an interpreter,
    and installs the packages of `role`, and Horovod if wanted, unless all are as pinned.

    Raises:
      ClusterError: with the reason in one line.
    """
    place = machine.place
    copied = 0 if place.is_local else _copy(machine, root, report)
    pins = requirements.pinned(role, with_horovod, root)
    own = place.is_local or place.python != REMOTE_PYTHON
    if not own:
        _make_environment(machine, report)
    wrong = _wrong_packages(machine, pins)
    if wrong and own:
        raise ClusterError(
            f"{place.name}: {place.python} has {', '.join(wrong)}; install the versions that "
            "constraints.txt pins, or leave the column python empty"
        )
    if wrong and with_horovod:
        _check_compiler(machine)
    if wrong:
        _install(machine, requirements.of_role(role, root), with_horovod, report)
        wrong = _wrong_packages(machine, pins)
        if wrong:
            raise ClusterError(
                f"{place.name}: after the installation there is still {', '.join(wrong)}"
            )
    return f"ready: {copied} files copied, {len(pins)} packages as pinned, in {place.workdir}"


def _copy(machine: Machine, root: Path, report: Report) -> int:
    """Copies the files that are missing or different; returns how many."""
    expected = project.manifest(root)
    names = list(expected)
    workdir = machine.place.workdir
    done = machine.run(["sha256sum", "--zero", "--", *(f"{workdir}/{name}" for name in names)])
    present = {
        path.removeprefix(f"{workdir}/"): digest
        for digest, _, path in (line.partition("  ") for line in done.stdout.split("\0"))
    }
    missing = [name for name in names if present.get(name) != expected[name]]
    for index, name in enumerate(missing):
        report(_COPIED * index / len(missing), f"copying {name}")
        machine.write(f"{workdir}/{name}", (root / name).read_bytes(), 0o644)
    return len(missing)


def _make_environment(machine: Machine, report: Report) -> None:
    place = machine.place
    if machine.run(in_workdir(place, [place.python, "-m", "pip", "--version"])).status == 0:
        return
    report(_COPIED, "creating a virtual environment")
    oldest, newest = requirements.PYTHON_VERSIONS
    test = f"import sys; sys.exit(not {oldest} <= sys.version_info[:2] <= {newest})"
    for base in ("python3", "python3.12", "python3.11"):
        if machine.run([base, "-c", test]).status == 0:
            break
    else:
        raise ClusterError(
            f"{place.name}: Python {oldest[0]}.{oldest[1]} to {newest[0]}.{newest[1]} not found"
        )
    done = machine.run(in_workdir(place, [base, "-m", "venv", _VENV]), timeout_s=300.0)
    if done.status != 0:
        raise ClusterError(
            f"{place.name}: {base} -m venv: {done.last_line} (is python3-venv installed?)"
        )


def _wrong_packages(machine: Machine, pins: dict[str, str]) -> list[str]:
    question = {"packages": list(pins), "folder": machine.place.workdir}
    versions = run_probe(machine, machine.place.python, "look", question)["versions"]
    return [f"{name} {versions[name] or 'missing'} instead of {version}"
            for name, version in pins.items() if versions[name] != version]  # fmt: skip


def _check_compiler(machine: Machine) -> None:
    """Raises ClusterError if what compiles Horovod is missing: before minutes of downloads."""
    place = machine.place
    missing = [tool for tool in ("cmake", "g++") if machine.run([tool, "--version"]).status != 0]
    header = (
        "import pathlib, sysconfig as s; pathlib.Path(s.get_path('include'), 'Python.h').stat()"
    )
    if machine.run(in_workdir(place, [place.python, "-c", header])).status != 0:
        missing.append("python3-dev")
    if missing:
        raise ClusterError(
            f"{place.name}: Horovod, which several learners need, cannot be compiled without "
            f"{', '.join(missing)}; on Debian: apt-get install {' '.join(missing)}"
        )


def _install(machine: Machine, wanted: list[str], with_horovod: bool, report: Report) -> None:
    python = machine.place.python
    pip = [python, "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar=off"]
    _pip(machine, [*pip, "-c", "constraints.txt", *wanted], report)
    if with_horovod:
        script = ["sh", "frontend/install_horovod.sh", python, "--progress-bar=off"]
        _pip(machine, script, report)


def _pip(machine: Machine, command: list[str], report: Report) -> None:
    running = machine.start(in_workdir(machine.place, command))
    last = error = ""
    for number, line in enumerate(running.lines()):
        last = line.strip() or last
        # Keep the first error: if pip cannot reach the index, its last line is a version conflict.
        if not error and last.lower().startswith(("error: ", "could not fetch url ")):
            error = last
        share = _COPIED + (1 - _COPIED) * min(0.95, number / _INSTALL_LINES)
        report(share, last[:60])
    if running.finish() != 0:
        raise ClusterError(f"{machine.place.name}: pip: {error or last}")
