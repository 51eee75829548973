"""Answers the front end on each machine: `python -m frontend.on_machine report|stop`.

Reads {"logdir", "run_id" or null, "names" or null, "timeout_s"} from standard input, prints JSON.
Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from frontend import process_state as states
from frontend.process_state import ProcessState


def report(logdir: str, run_id: str | None, names: list[str] | None) -> dict[str, Any]:
    """Returns {"now_unix_s", "processes": {name: its state, and the "pids" that are alive}}.

    Args:
      logdir: of the run, on this machine.
      run_id: only processes of this run; None for any run that used the logdir.
      names: only these processes; None for all that have a state in the logdir.
    """
    found = {}
    for state in _states(logdir, run_id, names):
        found[state.name] = {**vars(state), "pids": states.living_pids(state)}
    return {"now_unix_s": time.time(), "processes": found}


def stop(logdir: str, run_id: str, names: list[str], timeout_s: float) -> dict[str, Any]:
    """Stops the processes of a run, and no others, and waits until they have exited.

    Returns:
      {"stopped": {name: exit status}, "left": {name: pids that are still alive}}. Processes that
      were not running are in neither. The exit status is None if the process had not been started
      yet or its supervisor was dead.
    """
    running = [s for s in _states(logdir, run_id, names) if states.living_pids(s)]
    for state in running:
        # The supervisor stops its process. If there is no supervisor, signal the process directly.
        with contextlib.suppress(ProcessLookupError, IndexError):  # It has just exited.
            os.kill(states.living_pids(state)[0], signal.SIGTERM)
    until_s = time.monotonic() + timeout_s
    left = running
    while left and time.monotonic() < until_s:
        time.sleep(0.1)
        left = [state for state in left if _pids_now(logdir, state)]
    return {
        "stopped": {
            state.name: _newest(logdir, state).exit_status for state in running if state not in left
        },
        "left": {state.name: _pids_now(logdir, state) for state in left},
    }


def _pids_now(logdir: str, before: ProcessState) -> list[int]:
    """Returns the living pids of a process, including a child that was started since `before`."""
    newest = _newest(logdir, before)
    return sorted({*states.living_pids(before), *states.living_pids(newest)})


def _newest(logdir: str, before: ProcessState) -> ProcessState:
    return states.read_state(states.state_path(logdir, before.name)) or before


def _states(logdir: str, run_id: str | None, names: list[str] | None) -> list[ProcessState]:
    folder = states.processes_folder(logdir)
    paths = [states.state_path(logdir, name) for name in names] if names is not None else sorted(
        folder.glob("[!.]*.state.json"))  # fmt: skip
    found = [states.read_state(Path(path)) for path in paths]
    return [s for s in found if s is not None and run_id in (None, s.run_id)]


def main(arguments: list[str]) -> int:
    """Answers one question; returns the exit status."""
    asked = json.load(sys.stdin)
    where = asked["logdir"], asked["run_id"], asked["names"]
    if arguments == ["report"]:
        answer = report(*where)
    elif arguments == ["stop"]:
        answer = stop(*where, timeout_s=asked["timeout_s"])
    else:
        print("usage: python -m frontend.on_machine report|stop", file=sys.stderr)
        return 2
    print(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
