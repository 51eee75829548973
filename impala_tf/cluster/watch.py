"""The terminal that is attached to a run: shows the run, and lets late machines join it."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from impala_tf.cluster.launch import Launcher, end_processes, where_it_runs
from impala_tf.cluster.machines import Machines, connected, on_all, problems
from impala_tf.cluster.operate import MAY_BE_LOST, bad_ends
from impala_tf.cluster.plan import NodeSpec
from impala_tf.cluster.record import load
from impala_tf.cluster.runner import ClusterError, CommandRunner
from impala_tf.cluster.status import Look, Status, look
from impala_tf.config import user_commands
from impala_tf.machine.node import is_learner
from impala_tf.machine.supervision import (
    ENDED_AS_TOLD,
    ENDED_WELL,
    OVER,
    TOLD_TO_STOP,
    ProcessState,
)

if TYPE_CHECKING:
    from impala_tf.monitoring.live_display import Display

FIRST_LEARNER_S, LOOK_S, RETRY_S = 1.0, 5.0, 30.0
"""How often a launcher looks at learner 0's machine, at the others, and at those that are away."""
GONE_S = 60.0
"""How long a machine may lack a state: a launch or `restart` may be starting its supervisor."""
_UPDATE_S = 0.25
_ACTORS_END_S = 30.0
"""How long actors have to exit after their learners have told them that the run ends."""
# When all actors fail, wait for the learner: it may fail for the same reason, and says more.
_LEARNER_FAILS_S = 2.0
_LEADER = "learner-0"
_FAILED = ("failed", "refused")

MakeDisplay = Callable[[Callable[[], Any]], "Display"]
"""Makes a display. Its argument returns the newest status, or None if there is none yet."""


def watch(logdir: Path, make_display: MakeDisplay) -> int:
    """Shows a run until it ends, as the launcher does; see `Watcher.run`."""
    record = load(logdir)
    with connected(record.plan.nodes, record.passwords()) as machines:
        for line in problems(machines.found):
            print(line, file=sys.stderr)
        return Watcher(Launcher(record, logdir.resolve()), machines, make_display).run()


class Watcher:
    """Shows a run until it ends. Ctrl-C leaves the run running."""

    def __init__(self, launcher: Launcher, machines: Machines, make_display: MakeDisplay) -> None:
        """Shows nothing yet.

        Args:
          launcher: the run's launcher.
          machines: the run's machines. Those that are not connected are tried again, and join the
            run when they answer.
          make_display: makes the display.
        """
        self.launcher = launcher
        self.machines = machines
        self.states: dict[str, ProcessState] = {}
        self.notes: list[str] = []
        self.is_over = threading.Event()
        self.failure: BaseException | None = None
        self.status: Status | None = None
        self._display = make_display(lambda: self.status)

    def run(self) -> int:
        """Shows the run until it ends.

        Returns:
          0 if all learners finished or were stopped, or the run was left running; 1 if a learner
          failed, or may not have saved what it has learned.
        """
        machines = [_Machine(self, node) for node in self.launcher.record.plan.nodes]
        self._display.start()
        for machine in machines:
            machine.start()
        status, final = 0, ""
        try:
            status, final = self._result(self._until_over())
        except KeyboardInterrupt:
            pass  # the run itself continues
        finally:
            self.is_over.set()
            running = where_it_runs(self.launcher, self.machines)
            self._display.stop(final or f"left running: {running}")
        return status

    def _until_over(self) -> Mapping[str, ProcessState]:
        """Returns the processes whose end is that of the run, with their states."""
        since_s: float | None = None
        while True:
            if self.failure is not None:
                raise self.failure
            while self.notes:
                self._display.note(self.notes.pop(0))
            self._display.update()
            ended, patience_s = self._ended()
            since_s = (since_s or time.monotonic()) if ended else None
            if since_s is not None and time.monotonic() - since_s >= patience_s:
                return ended
            time.sleep(_UPDATE_S)

    def _ended(self) -> tuple[dict[str, ProcessState], float]:
        """Returns the processes whose end is that of the run, and how long to wait for others."""
        plan = self.launcher.record.plan
        over = {n: each for n, each in sorted(dict(self.states).items()) if each.state in OVER}
        learners = {name: each for name, each in over.items() if is_learner(name)}
        all_over = len(learners) == len(plan.learner_hosts)
        # When learner 0 is over, the run is; learners on lost machines may never say so.
        if all_over or _LEADER in learners:
            has_failed = any(each.state not in ENDED_WELL for each in learners.values())
            is_done = len(over) == len(plan.processes) or (all_over and has_failed)
            return learners, 0.0 if is_done else _ACTORS_END_S
        failed = {n: each for n, each in over.items() if each.state in _FAILED}
        if failed and len(failed) == len(plan.processes) - len(plan.learner_hosts):
            return failed, _LEARNER_FAILS_S
        return {}, 0.0

    def _result(self, ended: Mapping[str, ProcessState]) -> tuple[int, str]:
        """Ends what is left of the run; returns the exit status and the last line."""
        record, logdir = self.launcher.record, self.launcher.logdir
        self.is_over.set()
        on_all(self.machines.reached(), self.launcher.cancel)  # one may be joining
        answers = end_processes(record, self.machines.reached(), close=False)
        for line in bad_ends(answers, logdir):
            self._display.note(line)
        bad = {name: each for name, each in ended.items() if each.state not in ENDED_WELL}
        lost = {n: each for n, each in ended.items() if each.exit_status not in ENDED_AS_TOLD}
        if failed := bad or lost:
            why = "; ".join(f"{name} {each.state}: {each.detail}" for name, each in failed.items())
            why = why if bad else f"{why}; {MAY_BE_LOST}"
            logs = user_commands.frontend("logs", f"--logdir={logdir}", next(iter(failed)))
            return 1, f"failed: {why}; see {logs}"
        end, why = "done", str((self.status or {}).get("end_reason", ""))
        if unfinished := [each for each in ended.values() if each.state != "finished"]:
            end, why = "stopped", unfinished[0].detail.replace(TOLD_TO_STOP, "")
        node = record.first_learner()
        return 0, f"{f'{end}: {why}' if why else end}; logdir {node.logdir} on {node.name}"


class _Machine(threading.Thread):
    """Looks at one machine again and again, and lets it join the run if it comes late."""

    def __init__(self, watcher: Watcher, node: NodeSpec) -> None:
        super().__init__(daemon=True)
        self._watcher = watcher
        self._node = node
        found = watcher.machines.found[node.name]
        self._is_late = isinstance(found, ClusterError)
        """Whether it has not joined the run yet."""
        self._trouble = str(found) if self._is_late else ""  # the launch has reported it
        self._seen_s = time.monotonic()
        self._is_silent = False
        """Whether no supervisor runs there: it has rebooted, or all was killed."""

    def run(self) -> None:
        watcher, name = self._watcher, self._node.name
        is_first = self._node == watcher.launcher.record.first_learner()
        while not watcher.is_over.is_set():
            pause_s = FIRST_LEARNER_S if is_first else RETRY_S if self._is_late else LOOK_S
            try:
                self._look()
                if self._trouble and not self._is_late:
                    watcher.notes.append(f"{name}: reachable again")
                    self._trouble = ""
            except ClusterError as error:
                if str(error) != self._trouble:
                    still = "" if self._is_late else "; its processes may still run"
                    watcher.notes.append(f"{'; '.join(error.problems)}{still}")
                self._trouble = str(error)
            except BaseException as failure:
                watcher.failure = failure  # the main thread raises it
                return
            watcher.is_over.wait(pause_s)

    def _look(self) -> None:
        """Takes note of the machine's state, or lets it join the run.

        Raises:
          ClusterError: it cannot be reached, cannot join, or has lost the run.
        """
        watcher, node = self._watcher, self._node
        runner = watcher.machines.runner(node)
        seen = look(runner, watcher.launcher.record)
        if seen.state is not None:
            self._is_late, self._seen_s = False, time.monotonic()
            self._take_note(seen)
        elif self._is_late:
            self._join(runner)
        elif time.monotonic() - self._seen_s > GONE_S:
            logdir = f"--logdir={watcher.launcher.logdir}"
            raise ClusterError(
                f"{node.name}: {node.logdir} has nothing of the run any more (a disk that is not"
                " mounted?); when its files are there, or of actors also without them,"
                f" {user_commands.frontend('restart', logdir, node.name)} starts it again"
            )

    def _join(self, runner: CommandRunner) -> None:
        """Starts the processes of a machine that has not joined the run."""
        watcher = self._watcher
        leader = watcher.states.get(_LEADER)
        if leader is None or leader.state in OVER:
            return  # no run to join, or it is not known yet whether there is one
        record = load(watcher.launcher.logdir)  # `add` may have added actors since
        if record.run_id != watcher.launcher.record.run_id or watcher.is_over.is_set():
            return  # a later launch has taken the run over
        try:
            Launcher(record, watcher.launcher.logdir).bring_in(runner)
        except ClusterError as error:
            watcher.machines.found[runner.name] = error
            raise
        self._is_late, self._trouble, self._seen_s = False, "", time.monotonic()
        watcher.notes.append(f"{runner.name}: joined the run")

    def _take_note(self, seen: Look) -> None:
        watcher, name = self._watcher, self._node.name
        if 0 in seen.statuses:  # before the states: `_result` reads this once they are over
            watcher.status = seen.statuses[0]
        processes = seen.state.processes.values() if seen.state else ()
        is_silent = seen.is_silent and not all(process.state in OVER for process in processes)
        if is_silent and not self._is_silent:
            logdir = f"--logdir={watcher.launcher.logdir}"
            again = user_commands.frontend("restart", logdir, name)
            watcher.notes.append(f"{name}: its supervisor is silent; {again} starts it again")
        elif self._is_silent and not is_silent:
            watcher.notes.append(f"{name}: its supervisor is there again")
        self._is_silent = is_silent
        for process in processes:
            before = watcher.states.get(process.name, ProcessState(process.name, "starting"))
            if process.restarts > before.restarts:
                watcher.notes.append(f"{process.name} on {name} was restarted: {process.detail}")
            if process.state in _FAILED and before.state not in _FAILED:
                watcher.notes.append(f"{process.name} on {name} {process.state}: {process.detail}")
            watcher.states[process.name] = process
