"""Brings the project and its packages to the machines of a workers CSV."""

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
from frontend.workers import Secret

Report = Callable[[float, str], None]
"""Takes the share that is done, 0 to 1, and what is being done."""

_VENV = REMOTE_PYTHON.removesuffix("/bin/python")
_COPIED = 0.2  # share of the whole, as the progress shows it
_INSTALL_LINES = 200  # that pip prints, about


def set_up(
    plan: Plan,
    known: Mapping[str, Secret],
    accept_new_host_keys: bool,
    console: Console,
    root: Path = project.ROOT,
) -> int:
    """Sets up every machine of a plan at once; returns 1 where one could not be, else 0."""
    found = fleet.connect_each(plan, known, accept_new_host_keys)
    column = functools.partial(TextColumn, markup=False)
    columns = (column("{task.fields[place]}"), BarColumn(), column("{task.description}"))
    results: dict[str, str | ClusterError] = {}
    try:
        with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
            tasks = {n: progress.add_task("waits", total=1.0, place=n) for n in found}

            leaders = _leaders(found)
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
                    progress.update(tasks[name], description="cannot be used")
                    raise machine

                def report(share: float, text: str) -> None:
                    progress.update(tasks[name], completed=share, description=text)

                learns = any(process.group for process in plan.on(machine.place))
                try:
                    text = set_up_machine(machine, root, learns, report)
                except ClusterError:
                    report(0.0, "failed")
                    raise
                report(1.0, "ready")
                return text

            # Who waits for somebody comes last, or the pool might be full of those who wait.
            names = sorted(found, key=lambda name: leaders.get(name, name) != name)
            results = fleet.try_all(names, str, work)
    finally:
        fleet.close(found.values())
    for name, result in results.items():
        text = str(result) if isinstance(result, ClusterError) else f"{name}: {result}"
        console.print(text, markup=False, highlight=False, soft_wrap=True)
    return 1 if any(isinstance(result, ClusterError) for result in results.values()) else 0


def _leaders(found: Mapping[str, Machine | ClusterError]) -> dict[str, str]:
    """Returns {machine: the one that sets up the folder which both see as theirs}.

    Machines with a home on a file server have one folder together, and one of them fills it.
    """
    machines = {n: m for n, m in found.items() if not isinstance(m, ClusterError)}
    remote = {n: m for n, m in machines.items() if not m.place.is_local}
    numbers = {name: str(number) for number, name in enumerate(remote)}
    mark = f".setup-{secrets.token_hex(8)}-"

    def put(machine: Machine) -> None:
        machine.write(f"{machine.place.workdir}/{mark}{numbers[machine.place.name]}", b"")

    def seen(machine: Machine) -> list[int]:
        names = machine.run(["ls", "-A", machine.place.workdir]).stdout.splitlines()
        return [int(name.removeprefix(mark)) for name in names if name.startswith(mark)]

    def remove(machine: Machine) -> None:
        path = f"{machine.place.workdir}/{mark}{numbers[machine.place.name]}"
        machine.run(["rm", "-f", path])

    fleet.try_all(remote.values(), lambda m: m.place.name, put)
    sights = fleet.try_all(remote.values(), lambda m: m.place.name, seen)
    fleet.try_all(remote.values(), lambda m: m.place.name, remove)
    ordered = list(remote)
    return {
        name: ordered[min(sight)] if not isinstance(sight, ClusterError) and sight else name
        for name, sight in sights.items()
    }


def set_up_machine(machine: Machine, root: Path, with_horovod: bool, report: Report) -> str:
    """Sets up a machine; returns a line about it.

    Copies what differs, makes a virtual environment unless the CSV names an interpreter, and
    installs what is not installed as pinned.

    Raises:
      ClusterError: with the last line of what failed.
    """
    place = machine.place
    copied = 0 if place.is_local else _copy(machine, root, report)
    pins = requirements.pinned(root, with_horovod)
    own = place.is_local or place.python != REMOTE_PYTHON
    if not own:
        _make_environment(machine, report)
    wrong = _wrong_packages(machine, pins)
    if wrong and own:
        raise ClusterError(
            f"{place.name}: {place.python} has {', '.join(wrong)}; install what constraints.txt "
            "pins into it, or leave the column python empty"
        )
    if wrong and with_horovod:
        _check_compiler(machine)
    if wrong:
        _install(machine, root, with_horovod, report)
        wrong = _wrong_packages(machine, pins)
        if wrong:
            raise ClusterError(f"{place.name}: installed, and still: {', '.join(wrong)}")
    return f"ready: {copied} files copied, {len(pins)} packages as pinned, in {place.workdir}"


def _copy(machine: Machine, root: Path, report: Report) -> int:
    """Copies what is missing or differs; returns how many files that was."""
    expected = project.manifest(root)
    names = list(expected)
    workdir = machine.place.workdir
    done = machine.run(["sha256sum", "--zero", "--", *(f"{workdir}/{name}" for name in names)])
    there = {
        path.removeprefix(f"{workdir}/"): digest
        for digest, _, path in (line.partition("  ") for line in done.stdout.split("\0"))
    }
    missing = [name for name in names if there.get(name) != expected[name]]
    for index, name in enumerate(missing):
        report(_COPIED * index / len(missing), f"copies {name}")
        machine.write(f"{workdir}/{name}", (root / name).read_bytes(), 0o644)
    return len(missing)


def _make_environment(machine: Machine, report: Report) -> None:
    place = machine.place
    if machine.run(in_workdir(place, [place.python, "-m", "pip", "--version"])).status == 0:
        return
    report(_COPIED, "makes a virtual environment")
    oldest, newest = requirements.PYTHON_VERSIONS
    test = f"import sys; sys.exit(not {oldest} <= sys.version_info[:2] <= {newest})"
    for base in ("python3", "python3.12", "python3.11"):
        if machine.run([base, "-c", test]).status == 0:
            break
    else:
        raise ClusterError(
            f"{place.name}: no Python {oldest[0]}.{oldest[1]} to {newest[0]}.{newest[1]} there"
        )
    done = machine.run(in_workdir(place, [base, "-m", "venv", _VENV]), timeout_s=300.0)
    if done.status != 0:
        raise ClusterError(f"{place.name}: {base} -m venv: {done.said} (python3-venv missing?)")


def _wrong_packages(machine: Machine, pins: dict[str, str]) -> list[str]:
    question = {"packages": list(pins), "folder": machine.place.workdir}
    versions = run_probe(machine, machine.place.python, "look", question)["versions"]
    return [f"{name} {versions[name] or 'missing'} instead of {version}"
            for name, version in pins.items() if versions[name] != version]  # fmt: skip


def _check_compiler(machine: Machine) -> None:
    """Raises ClusterError where Horovod cannot be compiled; said before minutes of downloads."""
    place = machine.place
    missing = [tool for tool in ("cmake", "g++") if machine.run([tool, "--version"]).status != 0]
    header = (
        "import pathlib, sysconfig as s; pathlib.Path(s.get_path('include'), 'Python.h').stat()"
    )
    if machine.run(in_workdir(place, [place.python, "-c", header])).status != 0:
        missing.append("python3-dev")
    if missing:
        raise ClusterError(
            f"{place.name}: learners need Horovod, which is compiled there; missing: "
            f"{', '.join(missing)}; on Debian: apt-get install {' '.join(missing)}"
        )


def _install(machine: Machine, root: Path, with_horovod: bool, report: Report) -> None:
    pip = [machine.place.python, "-m", "pip", "install", "--disable-pip-version-check",
           "--progress-bar=off"]  # fmt: skip
    constrained = [*pip, "-c", "constraints.txt"]
    _pip(machine, [*constrained, *requirements.dependencies(root)], report)
    if with_horovod:
        _pip(machine, [*constrained, *requirements.HOROVOD_BUILD_TOOLS], report)
        build = [*pip, "--no-build-isolation", requirements.HOROVOD]
        _pip(machine, ["env", *requirements.HOROVOD_BUILD_ENVIRONMENT, *build], report)


def _pip(machine: Machine, command: list[str], report: Report) -> None:
    running = machine.start(in_workdir(machine.place, command))
    last = error = ""
    for number, line in enumerate(running.lines()):
        last = line.strip() or last
        # The first is the cause: without the index, pip ends with a conflict of versions.
        if not error and last.lower().startswith(("error: ", "could not fetch url ")):
            error = last
        share = _COPIED + (1 - _COPIED) * min(0.95, number / _INSTALL_LINES)
        report(share, last[:60])
    if running.finish() != 0:
        raise ClusterError(f"{machine.place.name}: pip: {error or last}")
