"""The Python stacks of all threads of a node's processes, which show where they hang."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from impala_tf.frontend.node import state as files

_WRITTEN_S = 10.0
"""How long processes may take to write stacks; see `process_lifetime.print_stacks_on_request`."""
_POLL_S = 0.5
_SIGN = "most recent call first"  # faulthandler writes it for each thread


def stacks(asked: Mapping[str, Any]) -> dict[str, str]:
    """Returns {name: the Python stacks of all its threads} of a node's processes.

    Args:
      asked: "logdir", "node", "names" or null for all.
    """
    state = files.read_state(files.state_path(asked["logdir"], asked["node"]))
    if state is None:
        return {}
    texts: dict[str, str] = {}
    with contextlib.ExitStack() as opened:
        logs = {}
        for name, pid in files.living_pids(state).items():
            if name == "supervisor" or (asked["names"] and name not in asked["names"]):
                continue
            if not _handles(pid, signal.SIGUSR1):
                texts[name] = "has not started yet"
                continue
            path = files.log_path(asked["logdir"], name)
            log = logs[name] = opened.enter_context(path.open(errors="replace"))
            log.seek(0, os.SEEK_END)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGUSR1)
        return texts | _written(logs)


def _written(logs: Mapping[str, IO[str]]) -> dict[str, str]:
    """Waits until processes have written their stacks; returns the new text of each log."""
    texts = dict.fromkeys(logs, "")
    until_s = time.monotonic() + _WRITTEN_S  # for all at once: a machine may have a hundred
    waiting = set(logs)
    while waiting and time.monotonic() < until_s:
        time.sleep(_POLL_S)
        for name in list(waiting):
            more = logs[name].read()
            texts[name] += more
            if not more and _SIGN in texts[name]:
                waiting.remove(name)
    return texts


def _handles(pid: int, number: signal.Signals) -> bool:
    """Tells whether a process has a handler for a signal. Source: proc(5), SigCgt."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False
