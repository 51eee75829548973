"""What a supervisor takes over from a killed one: see `NodeSupervisor`."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable

from impala_tf.frontend.node import state as files
from impala_tf.frontend.node.state import Orders
from impala_tf.machine.supervision import OVER, ProcessState

_TICK_S = 0.25


def before(orders: Orders) -> dict[str, ProcessState]:
    """Returns {name: state} of the processes of an earlier supervisor of the same run here.

    `pid` is set for processes that are still alive. {} if this is the run's first supervisor.
    """
    state = files.read_state(files.state_path(orders.logdir, orders.node))
    # A container that starts again has a new run with the same run_id.
    if state is None or (state.run_id, state.start) != (orders.run_id, orders.start):
        return {}
    alive = files.living_pids(state)
    return {
        name: process._replace(pid=alive.get(name)) for name, process in state.processes.items()
    }


def ended(known: dict[str, ProcessState], orders: Orders) -> dict[str, ProcessState]:
    """Returns the states of the processes that must not be started again."""
    ends = {name: state for name, state in known.items() if state.state in OVER}
    for name, state in known.items():
        if name in orders.stopped and name not in ends:
            detail = "while its supervisor was dead"
            ends[name] = state._replace(state="stopped", pid=None, detail=detail)
    return ends


def end_orphans(
    known: dict[str, ProcessState], stop_timeout_s: float, while_waiting: Callable[[], None]
) -> None:
    """Ends processes that still run, so that none runs twice; the kernel has told them to stop.

    Args:
      known: the result of `before`.
      stop_timeout_s: how long they may take before they are killed.
      while_waiting: called repeatedly meanwhile.
    """
    alive = {state.pid: state.pid_ticks for state in known.values() if state.pid}
    _signal(alive, signal.SIGTERM)
    until_s = time.monotonic() + stop_timeout_s
    while alive := {pid: ticks for pid, ticks in alive.items() if files.start_ticks(pid) == ticks}:
        if time.monotonic() > until_s:
            _signal(alive, signal.SIGKILL)
        while_waiting()
        time.sleep(_TICK_S)


def _signal(pids: dict[int, int | None], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            # Each leads a process group; nobody else would kill what is left of the group.
            (os.killpg if number == signal.SIGKILL else os.kill)(pid, number)
