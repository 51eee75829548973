"""The records of launches, in the user's own folder, for every later command. They hold no secrets.

A logdir has only the id of its launch: whoever can write there, or made it, must not choose what
the user's commands run, and on which machines. Whoever writes the record of a run has claimed its
logdir, and has read the record since.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from impala_tf.cluster.inventory import Secret, read_workers
from impala_tf.cluster.node.plain import from_plain, to_plain
from impala_tf.cluster.plan import NodeSpec, Plan, passwords
from impala_tf.config import ClusterConfig, ConfigError
from impala_tf.logdir import LAUNCH_ID, lock, open_regular, replace_file

SSH = "ssh"
"""The engine of runs with a workers CSV."""
_HINT = "a run on this machine alone shows itself in the terminal that it was started in"
_ID = re.compile(r"[0-9a-f]{16}")
_SHOWN = 5


class Launch(NamedTuple):
    """A run that this user has launched from this account, with any engine."""

    engine: str
    logdir: str
    """Absolute."""
    launched_unix_s: float
    job: Mapping[str, Any]
    """The engine's record of the run."""


class Record(NamedTuple):
    """A run over SSH."""

    run_id: str
    launched_unix_s: float
    workers_csv_path: str
    """Absolute. Passwords, if there are any, are read again from this file."""
    flags: tuple[str, ...]
    """The flags of the launch."""
    plan: Plan
    max_hours: float | None = None
    end_command: str | None = None
    secrets: tuple[str, ...] = ()
    """Names of variables whose values the processes get. No file of this machine has the values."""
    credentials: str = ""
    """Folder of the run's certificates on this machine, if it is not in the logdir."""
    code: str = ""
    """Digest of the run's code; see `snapshot`."""
    has_started: bool = False
    """Whether learner 0's machine has started it, by this launch or an earlier one."""

    def passwords(self) -> dict[str, Secret]:
        """Returns {name of the node: password}, from the workers CSV if it can still be read.

        The status and stop commands must work even while the CSV is edited.
        """
        path = Path(self.workers_csv_path)
        try:
            return passwords(read_workers(path)) if path.exists() else {}
        except ConfigError as error:
            print(*error.problems, "so no passwords are read from it", sep="\n", file=sys.stderr)
            return {}

    def first_learner(self) -> NodeSpec:
        """Returns the machine that has the files of the run."""
        return self.plan.machine_called(self.plan.processes[0].node)


def folder() -> Path:
    """Returns the folder of the records. Raises ConfigError if there is no home."""
    state = os.environ.get("XDG_STATE_HOME", "")
    try:
        parent = Path(state) if state.startswith("/") else Path.home() / ".local" / "state"
    except RuntimeError as error:  # a user id without a name
        raise ConfigError("no home folder here for records of launches: set HOME") from error
    return parent / "impala_tf" / "launches"


@contextlib.contextmanager
def claimed(logdir: Path) -> Iterator[bool]:
    """Claims a logdir until the block ends; yields False if another command of this user has it."""
    _make_folder()
    name = hashlib.sha256(str(logdir.resolve()).encode()).hexdigest()[:16]
    path = folder() / f"{name}.lock"
    with path.open("a") as file:
        try:
            lock(file.fileno(), path, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def write(run_id: str, launch: Launch) -> None:
    """Writes a record, and its id into the logdir; removes records of earlier launches there.

    The id has 16 random hexadecimal digits.
    """
    _make_folder()
    path = folder() / f"{run_id}.json"
    replace_file(path, (json.dumps(to_plain(launch), indent=1) + "\n").encode())
    logdir = Path(launch.logdir)
    logdir.mkdir(parents=True, exist_ok=True)
    replace_file(logdir / LAUNCH_ID, f"{run_id}\n".encode(), 0o644)
    for other in folder().glob("*.json"):
        found = _read(other)
        if other != path and found is not None and found.logdir == launch.logdir:
            other.unlink(missing_ok=True)


def find(logdir: str | Path) -> Launch:
    """Returns the launch of a logdir. Raises ConfigError if it is not one of this user's."""
    logdir = Path(logdir)
    if (run_id := _id_in(logdir)) is None:
        reason = "" if logdir.is_dir() else " (No such file or directory)"
        raise ConfigError(f"--logdir={logdir}: holds no launched run{reason}; {_HINT}")
    launch = _read(folder() / f"{run_id}.json") if _ID.fullmatch(run_id) else None
    if launch is None or launch.logdir != str(logdir.resolve()):
        raise ConfigError(
            f"--logdir={logdir}: was not launched from this account: {folder()} has no record of it"
            " that can be read"
        )
    return launch


def newest(tmux_sess: str = ClusterConfig.tmux_sess) -> Launch:
    """Returns the user's newest launch in a tmux session that still has its logdir.

    Raises:
      ConfigError: there is none; it names launches of other sessions and engines.
    """
    found = {path.stem: _read(path) for path in folder().glob("*.json")}
    launches = [each for name, each in found.items() if each and _id_in(Path(each.logdir)) == name]
    launches.sort(key=lambda launch: launch.launched_unix_s, reverse=True)
    for launch in launches:
        if launch.engine == SSH and launch.job["plan"]["tmux_sess"] == tmux_sess:
            return launch
    others = "".join(f" --logdir={launch.logdir}" for launch in launches[:_SHOWN])
    raise ConfigError(
        f"no run was launched from this account with --tmux_sess={tmux_sess}; "
        + (f"name the run, the newest first:{others}" if others else _HINT)
    )


def earlier(logdir: Path, engine: str) -> Launch | None:
    """Returns this user's last launch of a logdir, if an engine has it, else None."""
    folder()  # raises ConfigError if there is no home for the next record
    with contextlib.suppress(ConfigError):
        if (launch := find(logdir)).engine == engine:
            return launch
    return None


def load(logdir: str | Path) -> Record:
    """Returns the record of a run over SSH. Raises ConfigError if it is missing or unusable."""
    launch = find(logdir)
    if launch.engine != SSH:
        raise ConfigError(f"{logdir} has a run of --engine={launch.engine}")
    record: Record = from_plain(Record, launch.job)
    return record


def save(record: Record, logdir: Path) -> None:
    """Writes the record of a run over SSH; the caller has claimed the logdir."""
    job = to_plain(record)
    write(record.run_id, Launch(SSH, str(logdir.resolve()), record.launched_unix_s, job))


def _make_folder() -> None:
    folder().mkdir(parents=True, exist_ok=True)
    folder().chmod(0o700)


def _id_in(logdir: Path) -> str | None:
    with contextlib.suppress(OSError), open_regular(logdir / LAUNCH_ID) as file:
        return file.read(64).decode(errors="replace").strip()
    return None


def _read(path: Path) -> Launch | None:
    """Returns a record of this user; None if it is damaged."""
    try:
        return from_plain(Launch, json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None
