"""The processes of a run on one machine, and when they stop: learners first, then their actors.

A local run has one node. A launched run has one on every machine, in cluster/node/supervisor.py.
Standard library only, because those machines may be small.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Collection, Mapping
from typing import IO, Any

from impala_tf.machine.supervision import (
    TOLD_TO_STOP,
    Command,
    ProcessState,
    SupervisedProcess,
)

TICK_S = 0.25
"""How often to call `Node.tick`."""
_ACTOR_GRACE_S = 120.0
"""How long actors have to exit after --max_hours has ended the learners, which tell them."""


class Node:
    """The processes of a run on this machine, by name.

    `on_event` is called with a command and one line for every exit and restart, from other threads.
    The run ends when `max_hours` have passed, of which `ran_s` are over; `hours_passed` says so.
    After `stopping`, processes that are `leaving` start again when their machine is back.
    """

    def __init__(
        self,
        on_event: Callable[[Command, str], None],
        max_hours: float | None,
        ran_s: float = 0.0,
    ) -> None:
        self.processes: dict[str, SupervisedProcess] = {}
        self.stopping = self.leaving = False
        self._on_event = on_event
        hours = float("inf") if max_hours is None else max_hours
        self.hours_passed = f"--max_hours={hours:g} have passed"
        # Changes of the time of day must not affect --max_hours.
        self._end_s = time.monotonic() - ran_s + 3600 * hours

    @property
    def over(self) -> bool:
        """Whether all processes have ended for good."""
        return all(process.over for process in self.processes.values())

    @property
    def is_late(self) -> bool:
        """Whether --max_hours have passed."""
        return time.monotonic() > self._end_s

    @property
    def states(self) -> dict[str, ProcessState]:
        """{name: state} of all processes."""
        return {name: process.state for name, process in self.processes.items()}

    def add(self, command: Command, **hooks: Any) -> SupervisedProcess:
        """Returns a process for the caller to start; `hooks` are those of `SupervisedProcess`."""
        process = SupervisedProcess(command, lambda text: self._on_event(command, text), **hooks)
        self.processes[command.name] = process
        return process

    def stop(self, leaving: bool = False) -> None:
        """Makes `tick` stop all processes, to restart later if `leaving`; signal-safe."""
        self.leaving = self.leaving or leaving
        self.stopping = True

    def tick(self, stopped: Collection[str] = ()) -> None:
        """Stops processes that are due to stop, and those named in `stopped`; returns at once."""
        late_s = time.monotonic() - self._end_s
        learner_runs = any(
            is_learner(name) and not process.over for name, process in self.processes.items()
        )
        for name, process in self.processes.items():
            late = late_s > (0 if is_learner(name) else _ACTOR_GRACE_S)
            must_stop = late or name in stopped
            # A learner has to be stopped first, so that no unroll is on its way to it.
            if must_stop or (self.stopping and (is_learner(name) or not learner_runs)):
                reason = self.hours_passed if late else TOLD_TO_STOP
                process.stop(leaving=self.leaving and not must_stop, reason=reason)

    def close(self) -> None:
        """Stops all processes and waits for them."""
        self.stop()
        while not self.over:
            self.tick()
            time.sleep(TICK_S)
        for process in self.processes.values():
            process.join()


def is_learner(name: str) -> bool:
    """Tells whether a process is a learner, such as learner-0, and not an actor."""
    return name.startswith("learner-")


def run_end_command(
    command: str, logdir: str, states: Mapping[str, ProcessState], stdout: IO[str] | None = None
) -> None:
    """Runs --end_command in a shell, with the logdir and {name: state} as variables."""
    summary = " ".join(f"{name}={state.state}" for name, state in states.items())
    environment = {**os.environ, "IMPALA_TF_LOGDIR": logdir, "IMPALA_TF_STATES": summary}
    subprocess.run(["sh", "-c", command], stdin=subprocess.DEVNULL, stdout=stdout, env=environment)
