"""The files of a node: what its supervisor is told to run, and what it reports.

    LOGDIR/processes/NODE.orders.json   written by the agent
    LOGDIR/processes/NODE.state.json    written by the supervisor, at every change and every 2 s
    LOGDIR/processes/NODE.environment   the script that gives the supervisor the agent's variables
    LOGDIR/processes/NODE.cancelled     the run_id of a launch that was interrupted
    LOGDIR/processes/NAME.log           a process's output; supervisor-NODE.log: the supervisor's

Machines that share a home folder share the logdir, so the names of their files differ.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

from impala_tf.cluster.node.plain import from_plain, to_plain
from impala_tf.logdir import lock, replace_file
from impala_tf.machine.node import is_learner
from impala_tf.machine.supervision import ProcessState, start_ticks
from impala_tf.printable import printable_parts


class AgentError(Exception):
    """A task that cannot be done on this machine; the message says why, in one line."""


REFUSED = 122
"""Exit status of the agent after an `AgentError`. Others mean that it could not run at all."""
_POLL_S = 0.1
HEARTBEAT_S = 2.0
SILENT_S = 15.0
"""A supervisor that has not written its state for this long is dead or stopped."""


class GroupInfo(NamedTuple):
    """A learner's place among all learners of a run, some of which may be away."""

    number: int
    """2 for learner-2, whichever learners train with it."""
    hosts: tuple[str, ...]
    """The address of every learner, as the others reach it."""
    nodes: tuple[str, ...]
    """The machine of every learner, under any name."""
    rendezvous_port: int
    """A port of learner 0's machine."""
    min_learners: int | None = None
    """The fewest that may train; see `gathering.Gathering`."""

    @property
    def is_spread(self) -> bool:
        """Whether the learners are on several machines."""
        return len(set(self.nodes)) > 1


class ProcessSpec(NamedTuple):
    """A process of a run."""

    name: str
    """Such as learner-0 or actor-2: of its window and log, and for `impala cluster logs`."""
    node: str
    """Name of the node that runs it."""
    arguments: tuple[str, ...]
    """The words after the interpreter on the command line."""
    environment: Mapping[str, str] = {}
    max_restarts: int | None = None
    """How many restarts are allowed in an hour. None: no limit."""
    group: GroupInfo | None = None
    """For one of several learners: its place among them."""

    @property
    def is_learner(self) -> bool:
        """Whether it is a learner."""
        return is_learner(self.name)


class Orders(NamedTuple):
    """What a node's supervisor is told to do."""

    run_id: str
    node: str
    """Such as node-10.0.0.3; it is in the names of the node's files."""
    logdir: str
    """Absolute."""
    processes: tuple[ProcessSpec, ...]
    credentials: str
    """Folder of the run's certificates; absolute."""
    started_unix_s: float
    """When the run was launched, by the node's own clock."""
    tmux_sess: str = ""
    """'' for a node that another engine has started."""
    stopped: tuple[str, ...] = ()
    """Names of processes that must not run."""
    restarts: Mapping[str, int] = {}
    """{process: how often an operator has restarted it}."""
    max_hours: float | None = None
    end_command: str | None = None
    secrets: tuple[str, ...] = ()
    """Names of secret variables of the processes; see `keep_secrets`."""
    workdir: str = ""
    """The processes' current folder; absolute. '': the supervisor's own."""
    code: str = ""
    """Folder of the run's code; absolute. '': the workdir."""
    start: str = ""
    """Random; tells starts of the run with the same run_id apart."""
    started_boot_id: str = ""
    started_uptime_s: float = 0.0
    """The machine's boot id and uptime when the run was launched. They show how long ago that was,
    even if clocks change."""


class NodeState(NamedTuple):
    """What a node's supervisor reports."""

    run_id: str
    node: str
    pid: int
    """The supervisor's pid. Pids are reused, so its start time is stored, too."""
    pid_ticks: int
    boot_id: str
    uptime_s: float
    """The machine's uptime when this was written, to tell its age even if clocks change."""
    now_unix_s: float
    processes: Mapping[str, ProcessState]
    start: str = ""
    """The `start` of the orders."""


def processes_folder(logdir: str | Path) -> Path:
    """Returns the folder of the processes' logs and of the nodes' files."""
    return Path(logdir) / "processes"


def orders_path(logdir: str | Path, node: str) -> Path:
    """Returns the path of a node's orders."""
    return processes_folder(logdir) / f"{node}.orders.json"


def state_path(logdir: str | Path, node: str) -> Path:
    """Returns the path of a node's state."""
    return processes_folder(logdir) / f"{node}.state.json"


def cancelled_path(logdir: str | Path, node: str) -> Path:
    """Returns the path of the file with the run_id that `launch` refuses on a node."""
    return processes_folder(logdir) / f"{node}.cancelled"


def lock_path(logdir: str | Path, node: str) -> Path:
    """Returns the path of the file on which a supervisor holds a lock while it lives."""
    return processes_folder(logdir) / f"{node}.alive"


def log_path(logdir: str | Path, name: str) -> Path:
    """Returns the path of a process's log."""
    return processes_folder(logdir) / f"{name}.log"


def supervisor_log(logdir: str | Path, node: str) -> Path:
    """Returns the path of the log of a node's supervisor."""
    return log_path(logdir, f"supervisor-{node}")


def read_orders(path: Path) -> Orders:
    """Returns a node's orders. Raises OSError, or ValueError if the file is damaged."""
    return from_plain(Orders, json.loads(path.read_text(encoding="utf-8")))


@contextlib.contextmanager
def locked(folder: Path, name: str) -> Iterator[None]:
    """Holds a lock on the files of a node, or of what else has that name, in a folder."""
    path = folder / f".{name}.lock"
    with path.open("w") as file:
        lock(file.fileno(), path, fcntl.LOCK_EX)
        yield


def claim(logdir: str | Path, node: str, patience_s: float) -> IO[str]:
    """Returns the lock file of a node's supervisor, locked, once no other process has it.

    Raises:
      AgentError: another process still has it after `patience_s`.
    """
    path, until_s, was_said = lock_path(logdir, node), time.monotonic() + patience_s, False
    file = path.open("a")
    while True:
        try:
            lock(file.fileno(), path, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
        except BlockingIOError:
            if time.monotonic() > until_s:
                raise AgentError(f"another process is {node} there") from None
        if not was_said:
            was_said = True
            with contextlib.suppress(OSError):  # nobody reads it
                print(f"{path}: another process is {node}; waiting until it ends", file=sys.stderr)
        time.sleep(_POLL_S)


def read_state(path: Path) -> NodeState | None:
    """Returns the state that a supervisor wrote last, or None if there is none.

    A damaged file, such as an empty one after a power cut, counts as none.
    """
    try:
        return parse_state(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def read_states(logdir: str | Path) -> list[NodeState]:
    """Returns the states of all nodes that have written one into a logdir."""
    paths = sorted(processes_folder(logdir).glob("[!.]*.state.json"))
    return [state for state in map(read_state, paths) if state is not None]


def parse_state(text: str) -> NodeState:
    """Returns the state that a supervisor wrote. Raises ValueError if it is damaged."""
    return from_plain(NodeState, printable_parts(json.loads(text)))


def write(path: Path, value: Orders | NodeState) -> None:
    """Replaces a file atomically: readers see the old content or the new one."""
    replace_file(path, json.dumps(to_plain(value)).encode() + b"\n", 0o644)


def boot_id() -> str:
    """Returns an id that changes when this machine boots."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def uptime_s() -> float:
    """Returns how long this machine has been up, in seconds."""
    return float(Path("/proc/uptime").read_text().split()[0])


def new_orders(
    run_id: str, node: str, logdir: Path, processes: Iterable[ProcessSpec], **more: Any
) -> Orders:
    """Returns the orders of a node whose run begins now.

    Args:
      run_id: the run's id.
      node: the name of the node.
      logdir: the run's logdir on this machine, absolute.
      processes: what the node runs.
      **more: other fields of `Orders`. Default of `credentials`: a folder in the logdir.
    """
    fields: dict[str, Any] = {
        "credentials": str(logdir / "credentials"),
        "started_unix_s": time.time(),
        "start": secrets.token_hex(8),
        "started_boot_id": boot_id(),
        "started_uptime_s": uptime_s(),
    }
    return Orders(run_id, node, str(logdir), tuple(processes), **(fields | more))


def ran_s(orders: Orders) -> float:
    """Returns how long ago a run was launched, in seconds.

    Depends on the machine's clock only if the machine has rebooted since then.
    """
    if orders.started_boot_id == boot_id():
        return uptime_s() - orders.started_uptime_s
    return time.time() - orders.started_unix_s


def is_silent(state: NodeState, machine_boot_id: str, machine_uptime_s: float) -> bool:
    """Tells whether the supervisor that wrote `state` seems to be dead or stopped."""
    age_s = machine_uptime_s - state.uptime_s
    return state.boot_id != machine_boot_id or not 0 <= age_s <= SILENT_S


def living_pids(state: NodeState) -> dict[str, int]:
    """Returns {name of a process, or "supervisor": its pid} of processes that are alive here.

    Empty if the state was written before this machine's last boot, or on another machine.
    """
    if state.boot_id != boot_id():
        return {}
    started = {"supervisor": (state.pid, state.pid_ticks)} | {
        name: (process.pid, process.pid_ticks) for name, process in state.processes.items()
    }
    return {
        name: pid
        for name, (pid, ticks) in started.items()
        if pid and ticks is not None and start_ticks(pid) == ticks
    }


def check_owner(logdir: Path) -> None:
    """Raises AgentError if another user could read the run's keys, or replace its files."""
    for folder in (logdir, logdir / "credentials", processes_folder(logdir)):
        with contextlib.suppress(FileNotFoundError):
            owner = folder.stat().st_uid
            if owner not in (os.geteuid(), 0):
                raise AgentError(f"{folder} belongs to another user (uid {owner})")


def write_credentials(logdir: Path, contents: Mapping[str, str]) -> None:
    """Writes {file name: text} into a folder that only the user can open.

    Machines that share the logdir may write at the same time. The lock keeps a certificate and its
    key together.
    """
    folder = logdir / "credentials"
    folder.mkdir(mode=0o700, exist_ok=True)
    folder.chmod(0o700)
    with locked(processes_folder(logdir), "credentials"):
        for name, text in contents.items():
            replace_file(folder / name, text.encode())


def keep_secrets(orders: Orders, values: Mapping[str, str]) -> None:
    """Stores a run's secrets for restarts, until it ends; not in the logdir, which may be shared.

    Args:
      orders: the node's orders, which name them.
      values: {name: value}. They may lack some if the node still has all of them.

    Raises:
      AgentError: a secret is missing.
    """
    path = _secrets_path(orders)
    if not orders.secrets or path.exists():
        return
    if missing := [name for name in orders.secrets if name not in values]:
        raise AgentError(
            f"--secret={missing[0]}: was removed when the run ended, and is not set in the shell "
            "that restarts it"
        )
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.parent.chmod(0o700)
    replace_file(path, json.dumps({name: values[name] for name in orders.secrets}).encode())


def read_secrets(orders: Orders) -> dict[str, str]:
    """Returns {name: value}. Raises FileNotFoundError if they were removed."""
    if not orders.secrets:
        return {}
    return json.loads(_secrets_path(orders).read_text(encoding="utf-8"))


def remove_secrets(orders: Orders) -> None:
    """Removes the file of `keep_secrets`, if there is one."""
    _secrets_path(orders).unlink(missing_ok=True)


def _secrets_path(orders: Orders) -> Path:
    return Path.home() / ".impala_tf" / "secrets" / f"{orders.run_id}-{orders.node}.json"
