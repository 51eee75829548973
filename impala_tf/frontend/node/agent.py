"""Does the front end's work on a machine: JSON in, JSON out.

`python -m impala_tf.frontend.node.agent TASK` does one task.

The current folder is the project's, and the interpreter is that of the processes. Errors that a
user can fix are printed as one line, with the exit status REFUSED.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from impala_tf.frontend.node import recovery
from impala_tf.frontend.node import state as files
from impala_tf.frontend.node.plain import from_plain, to_plain
from impala_tf.frontend.node.state import REFUSED, AgentError, NodeState, Orders
from impala_tf.frontend.node.stopping import stop
from impala_tf.frontend.node.tmux import (
    SUPERVISOR,
    RunSession,
    Window,
    open_missing,
    open_supervisor,
)
from impala_tf.logdir import lock, moved_aside, replace_file
from impala_tf.machine.addresses import is_here, is_loopback_name, is_taken
from impala_tf.machine.supervision import OVER, STOP_TIMEOUT_S

_START_TIMEOUT_S = 60.0
_WINDOWS_END_S = 5.0
_OF_A_RUN = ("config.json", "checkpoints", "processes")  # what a started run has in its logdir
_KEPT = ("HOME", "LANG", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TMUX_TMPDIR", "TZ", "USER",
         "XDG_RUNTIME_DIR")  # fmt: skip
_KEPT_BEGINNINGS = ("CUDA_", "HOROVOD_", "IMPALA_TF_", "KMP_", "LC_", "LD_LIBRARY_", "NCCL_",
                    "NVIDIA_", "OMP_", "ROCM_", "TF_", "XLA_")  # fmt: skip


def clean_environment() -> dict[str, str]:
    """Returns the variables that a run's processes get.

    They must not see others, such as tokens of the shell that started tmux.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if name in _KEPT or name.startswith(_KEPT_BEGINNINGS)
    }


def check(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what a launch needs to know about this machine; changes nothing.

    Args:
      asked: "tmux_sess"; "logdir"; "addresses" to listen on; optionally "ports" ([host, port] of
        learners), "names" (of their hosts) and "needs_horovod".

    Returns:
      "workdir" and "logdir": absolute paths.
      "windows": names of the session's windows, except those that an ended run has left.
      "running": the logdir's processes that are alive.
      "foreign": those of "addresses" that are not this machine's.
      "loopback": those of "names" that mean a loopback address here, so others cannot use them.
      "taken": those of "ports" where another process listens.
      "lacks_horovod": whether it needs Horovod, and this interpreter does not have it.
      "run": "flags" and "sources" from the logdir's config.json; {} without a run.
      "has_files": whether the logdir has any files of a run.
    """
    logdir = Path(asked["logdir"]).expanduser().absolute()
    files.check_owner(logdir)
    session = RunSession(asked["tmux_sess"])
    windows = _settled_windows(session)
    return {
        "workdir": str(Path.cwd()),
        "logdir": str(logdir),
        "windows": [window.name for window in windows if not (window.run_id and window.dead)],
        "running": [
            f"{name} (pid {pid})"
            for state in files.read_states(logdir)
            for name, pid in files.living_pids(state).items()
        ],
        "foreign": [host for host in asked["addresses"] if not is_here(host)],
        "loopback": [host for host in asked.get("names", ()) if is_loopback_name(host)],
        "taken": [address for address in asked.get("ports", ()) if is_taken(*address)],
        "lacks_horovod": asked.get("needs_horovod", False) and find_spec("horovod") is None,
        "run": _run_in(logdir),
        "has_files": any((logdir / name).exists() for name in _OF_A_RUN),
    }


def _run_in(logdir: Path) -> dict[str, Any]:
    """Returns {} for a damaged config.json, too: the learner will say what is wrong with it."""
    try:
        described = json.loads((logdir / "config.json").read_text(encoding="utf-8"))
        return {name: dict(described.get(name, {})) for name in ("flags", "sources")}
    except (OSError, ValueError, AttributeError, TypeError, RecursionError):
        return {}


def set_aside(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Renames "logdir" if there is a run in it; returns "moved": its new path, or ''."""
    return {"moved": str(moved_aside(Path(asked["logdir"])) or "")}


def _settled_windows(session: RunSession) -> list[Window]:
    """Returns a session's windows, once the windows of a run that has just ended are dead."""
    until_s = time.monotonic() + _WINDOWS_END_S
    while True:
        windows = session.windows()
        ended = {pane.run_id for pane in windows if pane.name == SUPERVISOR and pane.dead}
        if time.monotonic() > until_s or not any(
            pane.run_id in ended and not pane.dead for pane in windows
        ):
            return windows
        time.sleep(0.1)


def launch(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Starts a node's processes: writes credentials and orders, opens windows, waits for the start.

    Args:
      asked: "orders" without the fields that only this machine knows, "credentials" {file name:
        text}, "secrets" {name: value} of the secrets that the orders name.

    Returns:
      The node's state.
    """
    logdir = Path(asked["orders"]["logdir"]).expanduser().absolute()
    files.check_owner(logdir)
    folder = files.processes_folder(logdir)
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    orders: Orders = from_plain(Orders, {
        **asked["orders"], "logdir": str(logdir), "credentials": str(logdir / "credentials"),
        "environment": clean_environment(), "workdir": str(Path.cwd()),
        "code": str(Path(asked["orders"]["code"]).absolute()), **files.start_of_run(),
    })  # fmt: skip
    with files.locked(folder, orders.node):
        cancelled = files.cancelled_path(logdir, orders.node)
        if cancelled.exists() and cancelled.read_text() == orders.run_id:
            raise AgentError(f"{files.CANCELLED}; launch the run again, which resumes it")
        earlier = files.read_state(files.state_path(logdir, orders.node))
        if earlier is not None and files.living_pids(earlier):
            raise AgentError(f"{logdir} is in use by {', '.join(files.living_pids(earlier))}")
        files.write_credentials(logdir, asked["credentials"])
        files.write(files.orders_path(logdir, orders.node), orders)
        try:
            if orders.secrets:
                files.write_secrets(orders, asked["secrets"])
            return to_plain(_start(orders))
        except BaseException:
            files.remove_secrets(orders)
            with contextlib.suppress(AgentError, OSError):  # the first error says what to fix
                _give_up(orders)
            raise


def _give_up(orders: Orders) -> None:
    """Keeps a slow supervisor from starting processes later."""
    files.write(files.orders_path(orders.logdir, orders.node), orders._replace(end_command=None))
    RunSession(orders.tmux_sess).close(orders.run_id)


def cancel(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Makes a `launch` that has not begun here fail; waits for the end of one that has begun.

    Args:
      asked: "logdir", "node", "run_id".
    """
    logdir = Path(asked["logdir"]).expanduser().absolute()
    files.check_owner(logdir)
    folder = files.processes_folder(logdir)
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    with files.locked(folder, asked["node"]):
        replace_file(files.cancelled_path(logdir, asked["node"]), asked["run_id"].encode())
    return {}


def add(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Replaces the orders of a running node, whose supervisor starts the new processes.

    Args:
      asked: "orders" as for `launch`; optionally "names" of stopped processes to start again, and
        "secrets" as for `restart`.
    """
    fields, names = asked["orders"], asked.get("names", ())
    path = files.orders_path(Path(fields["logdir"]).expanduser().absolute(), fields["node"])
    with files.changed_orders(path) as (orders, change):
        more: Orders = from_plain(Orders, {**to_plain(orders), "processes": fields["processes"]})
        files.renew_secrets(orders, asked.get("secrets", {}))
        stopped = tuple(name for name in orders.stopped if name not in names)
        change(orders._replace(processes=more.processes, stopped=stopped))
    return to_plain(_start(files.read_orders(path)))


def restart(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Restarts processes of a node, and its supervisor if that has ended.

    Args:
      asked: "logdir", "node", "names" or null for all, "secrets" {name: value} from the launcher's
        shell, in case the run had ended.

    Returns:
      The node's state.
    """
    path = files.orders_path(asked["logdir"], asked["node"])
    with files.changed_orders(path) as (orders, change):
        files.renew_secrets(orders, asked.get("secrets", {}))
        names = set(asked["names"] or (spec.name for spec in orders.processes))
        counts = {name: orders.restarts.get(name, 0) + 1 for name in names}
        stopped = tuple(name for name in orders.stopped if name not in names)
        change(orders._replace(stopped=stopped, restarts={**orders.restarts, **counts}))
    return to_plain(_start(files.read_orders(path)))


def rejoin(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Restarts the supervisor of a node, after the machine was down or everything was killed.

    Processes that had ended are not started. Does nothing if the supervisor's window restarts it.

    Args:
      asked: "logdir", "node".

    Returns:
      The node's state.
    """
    orders = files.read_orders(files.orders_path(asked["logdir"], asked["node"]))
    state = files.read_state(files.state_path(asked["logdir"], asked["node"]))
    if state is not None and all(each.state in OVER for each in state.processes.values()):
        return to_plain(state)  # the run had ended before
    with files.locked(files.processes_folder(orders.logdir), orders.node):
        windows = RunSession(orders.tmux_sess).windows()
        own = [each for each in windows if each.run_id == orders.run_id and not each.dead]
        if state is not None and SUPERVISOR in [each.name for each in own]:
            return to_plain(state)
        return to_plain(_start(orders, is_new=False))


def _start(orders: Orders, is_new: bool = True) -> NodeState:
    """Starts the supervisor, unless it runs, and opens missing windows.

    Args:
      orders: the node's orders.
      is_new: whether a new supervisor ignores the state of an earlier one, and starts all
        processes.
    """
    session = RunSession(orders.tmux_sess)
    state_file = files.state_path(orders.logdir, orders.node)
    earlier = files.read_state(state_file)
    runs = earlier is not None and "supervisor" in files.living_pids(earlier)
    for window in session.windows():
        if window.dead and window.run_id not in ("", orders.run_id):
            session.close(window.run_id)  # of a run that has ended
    is_ours = False
    if not runs:
        if not Path(orders.code).is_dir():
            raise AgentError(
                f"{orders.code}: no such folder; launch the run again, which resumes it"
            )
        session.close(orders.run_id)  # its window might start the supervisor at the same time
        _await_end_of_supervisor(orders)
        if is_new:
            recovery.end_orphans(recovery.before(orders), _START_TIMEOUT_S, lambda: None)
            state_file.unlink(missing_ok=True)
        is_ours = not session.windows()
        open_supervisor(session, orders)
    names = {spec.name for spec in orders.processes} - {*orders.stopped}
    state = _await_start(session, orders, state_file, names, None if runs else earlier)
    open_missing(session, orders)
    if is_ours and orders.processes:
        session.show(orders.processes[0].name)
    return state


def _await_start(
    session: RunSession,
    orders: Orders,
    state_file: Path,
    names: set[str],
    earlier: NodeState | None,
) -> NodeState:
    """Waits until the supervisor has started `names`; returns its state, not an earlier one's."""
    old = (earlier.pid, earlier.pid_ticks, earlier.boot_id) if earlier is not None else None
    until_s = time.monotonic() + _START_TIMEOUT_S
    while True:
        # First the window, then the state: the supervisor may write its state and end in between.
        dead = any(window.dead for window in session.windows() if window.name == SUPERVISOR)
        state = files.read_state(state_file)
        if (
            state is not None
            and state.run_id == orders.run_id
            and (state.pid, state.pid_ticks, state.boot_id) != old
            and all(
                name in state.processes and state.processes[name].state != "starting"
                for name in names
            )
        ):
            return state
        if dead or time.monotonic() > until_s:
            raise AgentError(f"the supervisor did not start: {session.last_line(SUPERVISOR)}")
        time.sleep(0.05)


def revoke(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Gives a learner's machine the newest list of machines to refuse.

    Args:
      asked: "logdir", "credentials" {file name: text}.
    """
    logdir = Path(asked["logdir"])
    files.check_owner(logdir)
    files.write_credentials(logdir, asked["credentials"])
    return {}


def _await_end_of_supervisor(orders: Orders) -> None:
    """Waits until no supervisor of the node holds its lock."""
    path = files.lock_path(orders.logdir, orders.node)
    with path.open("a") as file:
        until_s = time.monotonic() + STOP_TIMEOUT_S + _START_TIMEOUT_S
        while time.monotonic() < until_s:
            with contextlib.suppress(BlockingIOError):
                lock(file.fileno(), path, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            time.sleep(0.1)
    raise AgentError("another supervisor of this run does not end")


TASKS: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    task.__name__: task
    for task in (check, launch, cancel, add, stop, restart, rejoin, revoke, set_aside)
}


def main(arguments: list[str]) -> int:
    """Does one task; returns the exit status."""
    try:
        answer = TASKS[arguments[0]](json.load(sys.stdin))
    except (AgentError, OSError) as error:
        print(error, file=sys.stderr)
        return REFUSED
    print(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
