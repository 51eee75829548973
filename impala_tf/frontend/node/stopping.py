"""The agent's task `stop`: ends processes of a node, even if something else is wrong there."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from impala_tf.frontend.node import state as files
from impala_tf.frontend.node.state import NodeState
from impala_tf.frontend.node.tmux import SUPERVISOR, RunSession
from impala_tf.machine.supervision import OVER

_SUPERVISOR_ENDS_S = 20.0


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
    path = files.orders_path(asked["logdir"], asked["node"])
    state_file = files.state_path(asked["logdir"], asked["node"])
    state = files.read_state(state_file)
    if state is None or state.run_id != asked["run_id"]:
        return _stop_without_state(asked) if asked["names"] is None else {"stopped": {}, "left": {}}
    names = set(state.processes if asked["names"] is None else asked["names"])
    running = [name for name in files.living_pids(state) if name in names]
    with files.changed_orders(path) as (orders, change):
        present = {spec.name for spec in orders.processes}
        command = orders.end_command if asked["is_final"] else None
        stopped = tuple(sorted({*orders.stopped, *(names & present)}))
        try:
            change(orders._replace(stopped=stopped, end_command=command))
        except OSError as error:  # such as a full disk, which must not keep a run alive
            if not names >= {*state.processes}:
                raise files.AgentError(
                    f"{path}: {error.strerror}; until that is repaired, only the whole run can be"
                    " stopped"
                ) from error
            _interrupt_supervisor(state)
    until_s = time.monotonic() + asked["timeout_s"]
    terminated: set[int] = set()
    while True:
        state = files.read_state(state_file) or state
        alive = files.living_pids(state)
        if "supervisor" not in alive:
            _terminate(alive, terminated)
        remaining = {name: pid for name, pid in alive.items() if name in names}
        if _have_ended(state, alive, names) or time.monotonic() > until_s:
            break
        time.sleep(0.1)
    if "supervisor" not in alive:  # it wrote the exit statuses before it ended
        state = files.read_state(state_file) or state
    if "supervisor" not in alive and not remaining and names >= {*state.processes}:
        files.remove_secrets(orders)
    if asked["close"] and not remaining and names >= {*state.processes} and _supervisor_ends(state):
        RunSession(orders.tmux_sess).close(asked["run_id"])
    ended = [name for name in running if name not in remaining]
    return {
        "stopped": {name: state.processes[name].exit_status for name in ended},
        "left": remaining,
    }


def _stop_without_state(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Stops a supervisor whose files were deleted, or that has not written any yet.

    When its window is closed, it stops its processes, learners first, and ends.
    """
    try:
        session = RunSession(asked["tmux_sess"])
    except files.AgentError:  # without tmux, nothing was started here
        return {"stopped": {}, "left": {}}
    path = files.orders_path(asked["logdir"], asked["node"])
    if not asked["is_final"]:
        with (
            contextlib.suppress(files.AgentError, OSError, ValueError),
            files.changed_orders(path) as (orders, change),
        ):
            if orders.run_id == asked["run_id"]:
                change(orders._replace(end_command=None))
    windows = [window for window in session.windows() if window.run_id == asked["run_id"]]
    supervisors = [each.pid for each in windows if each.name == SUPERVISOR and not each.dead]
    alive = _started_by(supervisors)
    session.close(asked["run_id"])
    until_s = time.monotonic() + asked["timeout_s"]
    while alive and time.monotonic() < until_s:
        time.sleep(0.1)
        alive = {pid: ticks for pid, ticks in alive.items() if files.start_ticks(pid) == ticks}
    return {
        "stopped": {SUPERVISOR: None} if supervisors and not alive else {},
        "left": {SUPERVISOR: min(alive)} if alive else {},
    }


def _started_by(pids: Sequence[int]) -> dict[int, int]:
    """Returns {pid: start ticks} of living processes, and of all that they have started."""
    starts: dict[int, int] = {}
    for pid in pids:
        if (ticks := files.start_ticks(pid)) is not None:
            starts[pid] = ticks
        for path in Path(f"/proc/{pid}/task").glob("*/children"):
            with contextlib.suppress(OSError):  # the process has ended
                starts |= _started_by([int(child) for child in path.read_text().split()])
    return starts


def _have_ended(state: NodeState, alive: Mapping[str, int], names: set[str]) -> bool:
    if "supervisor" not in alive:
        return not names & alive.keys()
    return all(process.state in (*OVER, "left") for name, process in state.processes.items()
               if name in names)  # fmt: skip


def _supervisor_ends(state: NodeState) -> bool:
    """Gives an idle supervisor some seconds to exit; returns whether it has exited."""
    until_s = time.monotonic() + _SUPERVISOR_ENDS_S
    while "supervisor" in files.living_pids(state) and time.monotonic() < until_s:
        time.sleep(0.1)
    return "supervisor" not in files.living_pids(state)


def _interrupt_supervisor(state: NodeState) -> None:
    """Makes a supervisor stop its processes and exit, as Ctrl-C in its window does."""
    if pid := files.living_pids(state).get("supervisor"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGINT)


def _terminate(alive: Mapping[str, int], told: set[int]) -> None:
    """Sends each process one SIGTERM: a later one would end a learner before its checkpoint."""
    for pid in set(alive.values()) - told:
        told.add(pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
