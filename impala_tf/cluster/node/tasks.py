"""Does the launcher's work on a machine: JSON in, JSON out.

`python -m impala_tf.cluster.node.tasks TASK` does one task.

The current folder is the project's, and the interpreter is that of the processes. Errors that a
user can fix are printed as one line, with the exit status REFUSED.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from impala_tf.cluster.node import state as files
from impala_tf.cluster.node.plain import from_plain, to_plain
from impala_tf.cluster.node.state import REFUSED, AgentError, NodeState, Orders, ProcessSpec
from impala_tf.cluster.node.tmux import (
    SUPERVISOR,
    RunSession,
    Window,
    open_missing,
    open_supervisor,
)
from impala_tf.logdir import moved_aside, replace_file
from impala_tf.machine.local_addresses import is_here, is_loopback_name, is_taken
from impala_tf.machine.supervision import OVER, STOP_TIMEOUT_S

_START_TIMEOUT_S = 60.0
_SUPERVISOR_ENDS_S = 20.0
_POLL_S = 0.1
_OF_A_RUN = ("config.json", "checkpoints", "processes")  # what a started run has in its logdir
_KEPT = re.compile(
    "HOME|LANG|LOGNAME|PATH|SHELL|TMPDIR|TMUX_TMPDIR|TZ|USER|XDG_RUNTIME_DIR"
    "|(CUDA|HOROVOD|IMPALA_TF|KMP|LC|LD_LIBRARY|NCCL|NVIDIA|OMP|ROCM|TF|XLA)_.*",
    re.DOTALL,
)
"""Variables that a run's processes get; others may be such as tokens of the user's shell."""


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
    windows = RunSession(asked["tmux_sess"]).windows()
    ended = _ended_runs(windows)
    in_use = [
        each.name for each in windows if not (each.run_id and (each.dead or each.run_id in ended))
    ]
    return {
        "workdir": str(Path.cwd()),
        "logdir": str(logdir),
        "windows": in_use,
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


def _ended_runs(windows: Collection[Window]) -> set[str]:
    """Returns the runs whose supervisor has ended; their other windows close by themselves."""
    return {each.run_id for each in windows if each.name == SUPERVISOR and each.dead}


def launch(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Starts a node's processes: writes credentials and orders, opens windows, waits for the start.

    Args:
      asked: "orders": arguments of `state.new_orders`, and "code"; "credentials" {file name: text},
        "secrets" {name: value} of the secrets that the orders name.

    Returns:
      The node's state.
    """
    given = {**asked["orders"], "logdir": Path(asked["orders"]["logdir"]).expanduser().absolute()}
    given |= {"processes": _processes(given), "code": str(Path(given["code"]).absolute())}
    orders = files.new_orders(**given, workdir=str(Path.cwd()))
    logdir = Path(orders.logdir)
    with _locked(logdir, orders.node):
        cancelled = files.cancelled_path(logdir, orders.node)
        if cancelled.exists() and cancelled.read_text() == orders.run_id:
            raise AgentError("the launch was interrupted; launch the run again, which resumes it")
        state_file = files.state_path(logdir, orders.node)
        earlier = files.read_state(state_file)
        if earlier is not None and files.living_pids(earlier):
            raise AgentError(f"{logdir} is in use by {', '.join(files.living_pids(earlier))}")
        state_file.unlink(missing_ok=True)
        files.write_credentials(logdir, asked["credentials"])
        files.write(files.orders_path(logdir, orders.node), orders)
        try:
            files.keep_secrets(orders, asked.get("secrets", {}))
            return to_plain(_start(orders))
        except BaseException:
            files.remove_secrets(orders)
            with contextlib.suppress(AgentError, OSError):  # the first error says what to fix
                # Keeps a slow supervisor from starting processes later.
                files.write(
                    files.orders_path(logdir, orders.node), orders._replace(end_command=None)
                )
                RunSession(orders.tmux_sess).close(orders.run_id)
            raise


def _processes(orders: Mapping[str, Any]) -> tuple[ProcessSpec, ...]:
    return tuple(from_plain(ProcessSpec, process) for process in orders["processes"])


@contextlib.contextmanager
def _locked(logdir: Path, node: str) -> Iterator[None]:
    """Makes the folder of a node's files, if it is this user's, and holds the node's lock."""
    files.check_owner(logdir)
    folder = files.processes_folder(logdir)
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    with files.locked(folder, node):
        yield


def cancel(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Makes a `launch` that has not begun here fail; waits for the end of one that has begun.

    Args:
      asked: "logdir", "node", "run_id".
    """
    logdir = Path(asked["logdir"]).expanduser().absolute()
    with _locked(logdir, asked["node"]):
        replace_file(files.cancelled_path(logdir, asked["node"]), asked["run_id"].encode())
    return {}


def restart(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Starts processes of a node again, or for the first time, and its supervisor if that ended.

    Args:
      asked: "logdir", "node", "processes": all of the node's, "names" of those to start, "secrets"
        {name: value} from the launcher's shell, in case the run had ended.

    Returns:
      The node's state.
    """
    path = files.orders_path(Path(asked["logdir"]).expanduser().absolute(), asked["node"])
    names = set(asked["names"])
    with files.locked(path.parent, asked["node"]):
        before = files.read_orders(path)
        files.keep_secrets(before, asked.get("secrets", {}))
        counts = {name: before.restarts.get(name, 0) + 1 for name in names}
        orders = before._replace(
            processes=_processes(asked),
            stopped=tuple(name for name in before.stopped if name not in names),
            restarts={**before.restarts, **counts},
        )
        files.write(path, orders)
    return to_plain(_start(orders, names))


def _start(orders: Orders, names: Collection[str] = ()) -> NodeState:
    """Starts the supervisor, unless it runs, and opens missing windows.

    Args:
      orders: the node's orders.
      names: processes that start even if they had ended.
    """
    session = RunSession(orders.tmux_sess)
    state_file = files.state_path(orders.logdir, orders.node)
    earlier = files.read_state(state_file)
    runs = earlier is not None and "supervisor" in files.living_pids(earlier)
    for run_id in _ended_runs(session.windows()) - {orders.run_id}:
        session.close(run_id)
    is_ours = False
    if not runs:
        session.close(orders.run_id)  # its window might start the supervisor at the same time
        files.claim(orders.logdir, orders.node, STOP_TIMEOUT_S + _START_TIMEOUT_S).close()
        if (earlier := files.read_state(state_file)) is not None:
            alive = files.living_pids(earlier)  # the next supervisor ends and restarts these
            others = {
                name: process
                for name, process in earlier.processes.items()
                if name not in names or name in alive
            }
            files.write(state_file, earlier._replace(processes=others))
        is_ours = not session.windows()
        kept = {name: text for name, text in os.environ.items() if _KEPT.fullmatch(name)}
        open_supervisor(session, orders, kept)
    started = {spec.name for spec in orders.processes} - {*orders.stopped}
    state = _await_start(session, orders, state_file, started, None if runs else earlier)
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
    old = earlier and (earlier.pid, earlier.pid_ticks, earlier.boot_id)
    until_s = time.monotonic() + _START_TIMEOUT_S
    while True:
        # First the window, then the state: the supervisor may write its state and end in between.
        dead = any(window.dead for window in session.windows() if window.name == SUPERVISOR)
        state = files.read_state(state_file)
        if (
            state is not None
            and state.run_id == orders.run_id
            and (state.pid, state.pid_ticks, state.boot_id) != old
            and names <= {n for n, each in state.processes.items() if each.state != "starting"}
        ):
            return state
        if dead or time.monotonic() > until_s:
            raise AgentError(f"the supervisor did not start: {session.last_line(SUPERVISOR)}")
        time.sleep(_POLL_S)


def stop(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Stops processes of a run, and no others, and waits until they have exited.

    Args:
      asked: "logdir", "node", "run_id", "tmux_sess", "names" or null for all, "timeout_s", "close":
        whether to close the windows if no process of the run is left, "is_final": whether
        --end_command follows.

    Returns:
      "stopped" {name: exit status, or null if it is unknown}, "left" {name: pid} of processes that
      are still alive. Processes that were not running are in neither.
    """
    state_file = files.state_path(asked["logdir"], asked["node"])
    state = files.read_state(state_file)
    if state is None or state.run_id != asked["run_id"]:
        return _close_windows(asked) if asked["names"] is None else {"stopped": {}, "left": {}}
    names = set(state.processes if asked["names"] is None else asked["names"])
    is_all = names >= {*state.processes}
    running = [name for name in files.living_pids(state) if name in names]
    path = files.orders_path(asked["logdir"], asked["node"])
    with files.locked(path.parent, asked["node"]):
        orders = files.read_orders(path)
        present = {spec.name for spec in orders.processes}
        command = orders.end_command if asked["is_final"] else None
        stopped = tuple(sorted({*orders.stopped, *(names & present)}))
        try:
            files.write(path, orders._replace(stopped=stopped, end_command=command))
        except OSError:  # such as a full disk, which must not keep a run alive
            if not is_all:
                raise
            if pid := files.living_pids(state).get("supervisor"):
                os.kill(pid, signal.SIGINT)  # as Ctrl-C in its window
    until_s = time.monotonic() + asked["timeout_s"]
    while not _have_ended(state, names) and time.monotonic() < until_s:
        time.sleep(_POLL_S)
        state = files.read_state(state_file) or state
    if is_all and _have_ended(state, names):  # the supervisor ends, too
        until_s = time.monotonic() + _SUPERVISOR_ENDS_S
        while "supervisor" in files.living_pids(state) and time.monotonic() < until_s:
            time.sleep(_POLL_S)
    alive = files.living_pids(state)
    state = files.read_state(state_file) or state  # it wrote the exit statuses before it ended
    left = {name: pid for name, pid in alive.items() if name in names}
    if is_all and not left and "supervisor" not in alive:
        files.remove_secrets(orders)  # a killed supervisor did not
        if asked["close"]:
            RunSession(orders.tmux_sess).close(asked["run_id"])
    return {
        "stopped": {n: state.processes[n].exit_status for n in running if n not in left},
        "left": left,
    }


def _have_ended(state: NodeState, names: set[str]) -> bool:
    alive = files.living_pids(state)
    if "supervisor" not in alive:
        return not names & alive.keys()
    return all(
        process.state in (*OVER, "left")
        for name, process in state.processes.items()
        if name in names
    )


def _close_windows(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Stops a supervisor whose files were deleted, or that has not written any yet.

    When its window is closed, it stops its processes, learners first, and ends; nothing says when.
    """
    with contextlib.suppress(AgentError):  # without tmux, nothing was started here
        session = RunSession(asked["tmux_sess"])
        windows = [each for each in session.windows() if each.run_id == asked["run_id"]]
        session.close(asked["run_id"])
        if any(each.name == SUPERVISOR and not each.dead for each in windows):
            return {"stopped": {SUPERVISOR: None}, "left": {}}
    return {"stopped": {}, "left": {}}


def revoke(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Gives a learner's machine the newest list of machines to refuse.

    Args:
      asked: "logdir", "credentials" {file name: text}.
    """
    logdir = Path(asked["logdir"])
    files.check_owner(logdir)
    files.write_credentials(logdir, asked["credentials"])
    return {}


TASKS: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    task.__name__: task for task in (check, launch, cancel, stop, restart, revoke, set_aside)
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
