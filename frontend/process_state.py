"""What a supervisor is told and what it reports: two small JSON files next to its process's log.

Standard library only: this runs on every machine.
"""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any, Literal

State = Literal["meeting", "running", "waiting", "finished", "stopped", "refused", "failed"]
OVER: tuple[State, ...] = ("finished", "stopped", "refused", "failed")


@dataclasses.dataclass(frozen=True)
class Seat:
    """A learner's position in its group; see `frontend.plan.Group`."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    host: str
    rendezvous_host: str
    rendezvous_port: int


@dataclasses.dataclass(frozen=True)
class Spec:
    """What to supervise."""

    run_id: str
    name: str
    argv: tuple[str, ...]
    workdir: str
    logdir: str
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    max_restarts: int | None = None
    """None: no limit."""
    seat: Seat | None = None


@dataclasses.dataclass
class ProcessState:
    """The state of a process, as its supervisor last wrote it."""

    run_id: str
    name: str
    pid: int
    """The supervisor's. Pids are reused, so its start time is kept with it."""
    pid_ticks: int
    child_pid: int | None = None
    child_ticks: int | None = None
    state: State = "meeting"
    restarts: int = 0
    started_unix_s: float = 0.0
    """When the process was last started."""
    ended_unix_s: float | None = None
    exit_status: int | None = None
    detail: str = ""
    """One line for people."""


def processes_folder(logdir: str | Path) -> Path:
    """Returns the folder of the processes' logs, specs and states."""
    return Path(logdir) / "processes"


def spec_path(logdir: str | Path, name: str) -> Path:
    """Returns the path of a process's spec."""
    return processes_folder(logdir) / f"{name}.spec.json"


def state_path(logdir: str | Path, name: str) -> Path:
    """Returns the path of a process's state."""
    return processes_folder(logdir) / f"{name}.state.json"


def log_path(logdir: str | Path, name: str) -> Path:
    """Returns the path of a process's log."""
    return processes_folder(logdir) / f"{name}.log"


def to_json(value: Spec | ProcessState) -> str:
    """Returns a spec or a state as JSON."""
    return json.dumps(dataclasses.asdict(value))


def spec_from_json(text: str) -> Spec:
    """Returns the spec that `to_json` wrote."""
    fields: dict[str, Any] = json.loads(text)
    seat = Seat(**fields["seat"]) if fields["seat"] else None
    return Spec(**{**fields, "argv": tuple(fields["argv"]), "seat": seat})


def read_state(path: Path) -> ProcessState | None:
    """Returns the state that a supervisor wrote last, or None if there is none."""
    try:
        return ProcessState(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None


def write_state(path: Path, state: ProcessState) -> None:
    """Replaces a state atomically: readers see the old one or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(to_json(state), encoding="utf-8")
    temporary.replace(path)


def start_ticks(pid: int) -> int | None:
    """Returns when a process started, in clock ticks since boot; None if it has exited.

    Source: proc(5), /proc/PID/stat, fields 3 (state) and 22 (starttime).
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def living_pids(state: ProcessState) -> list[int]:
    """Returns those pids of a supervisor and its child that are alive and not reused."""
    pairs = ((state.pid, state.pid_ticks), (state.child_pid, state.child_ticks))
    return [pid for pid, ticks in pairs if pid and start_ticks(pid) == ticks is not None]
