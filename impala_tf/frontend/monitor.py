"""The launcher's terminal while it is attached to a run: shows the run, and adds late machines."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from impala_tf.config import user_commands
from impala_tf.frontend.launcher import Launcher
from impala_tf.frontend.machines import Machines, connected, good, on_all, problems
from impala_tf.frontend.node.state import NodeState
from impala_tf.frontend.operate import MAY_BE_LOST, STOP_S, end_processes, lost_work
from impala_tf.frontend.record import Record, load
from impala_tf.frontend.runner import ClusterError, CommandRunner
from impala_tf.frontend.status import Look, Status, look
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
"""How often a launcher looks at learner 0's machine, at the others, and at lost ones."""
GONE_S = 60.0
"""How long a machine may lack a state: a launch or `restart` may be starting its supervisor."""
_UPDATE_S = 0.25
_ACTORS_END_S = 30.0
"""How long actors have to exit after their learners have told them that the run ends."""


_LEADER = "learner-0"
_FAILED = ("failed", "refused")
# When all actors fail, wait for the learner: it may fail for the same reason, and says more.
_LEARNER_FAILS_S = 2.0

MakeDisplay = Callable[[Callable[[], Any]], "Display"]


def where_it_runs(record: Record, machines: Machines, logdir: Path) -> str:
    """Says how many processes run on reached machines, and how to look after them."""
    nodes = {runner.node.name for runner in machines.reached()}
    processes = [process for process in record.plan.processes if process.node in nodes]
    status = user_commands.frontend("status", f"--logdir={logdir}")
    return (
        f"{len(processes)} processes on {len(nodes)} machine(s); "
        f"see {status} (or watch, logs NAME, stop), "
        f"or tmux attach -t {record.plan.tmux_sess} on a machine"
    )


def watch(logdir: Path, make_display: MakeDisplay) -> int:
    """Shows a run until it ends, as the launcher does; Ctrl-C leaves it running.

    Args:
      logdir: the run's logdir, on this machine.
      make_display: see `impala_tf.frontend.launch.launch`.

    Returns:
      0 if all learners finished or were stopped, or the run was left running; 1 if a learner
      failed, or may not have saved what it has learned.
    """
    record = load(logdir)
    with connected(record.plan.nodes, record.passwords()) as machines:
        for line in problems(machines.found):
            print(line, file=sys.stderr)
        return Monitor(Launcher(record, logdir), machines, logdir.resolve(), make_display).run()


class Monitor:
    """Shows a run until it ends. Ctrl-C leaves the run running."""

    def __init__(
        self, launcher: Launcher, machines: Machines, logdir: Path, make_display: MakeDisplay
    ) -> None:
        """Shows nothing yet.

        Args:
          launcher: the run's launcher.
          machines: the run's machines. Those that are not connected are tried again, and join the
            run when they answer.
          logdir: the run's logdir, on this machine.
          make_display: makes a display. Its argument returns the newest status, or None if there is
            none yet.
        """
        self._launcher = launcher
        self._machines = machines
        self._logdir = logdir
        self._status: Status | None = None
        self._states: dict[str, ProcessState] = {}
        # Machines that have not joined the run yet, or have lost it.
        self._absent = {
            name for name, machine in machines.found.items() if isinstance(machine, ClusterError)
        }
        self._gone_since_s: dict[str, float] = {}
        self._joining: dict[str, CommandRunner] = {}
        self._is_over = threading.Event()
        self._silent: set[str] = set()
        self._failure: BaseException | None = None
        self._notes: list[str] = []
        self._closing = threading.Event()
        self._display = make_display(lambda: self._status)

    def run(self) -> int:
        """Shows the run until it ends; returns the exit status."""
        nodes = self._launcher.record.plan.nodes
        threads = [
            threading.Thread(target=self._watch, args=(node.name,), daemon=True) for node in nodes
        ]
        self._display.start()
        for thread in threads:
            thread.start()
        status, final = 0, ""
        try:
            status, final = self._until_over()
        except KeyboardInterrupt:
            pass  # The run itself continues.
        finally:
            self._closing.set()
            where = where_it_runs(self._launcher.record, self._machines, self._logdir)
            self._display.stop(final or f"left running: {where}")
        return status

    def _until_over(self) -> tuple[int, str]:
        plan = self._launcher.record.plan
        names = {process.name for process in plan.processes}
        learners = {process.name for process in plan.processes if process.is_learner}
        actors = names - learners
        over_since_s = no_actor_since_s = 0.0
        while True:
            if self._failure is not None:
                raise self._failure
            while self._notes:
                self._display.note(self._notes.pop(0))
            self._display.update()
            states = dict(self._states)
            over = {name for name, state in states.items() if state.state in OVER}
            # When learner 0 is over, the run is; learners on lost machines may never say so.
            if learners <= over or _LEADER in over:
                over_since_s = over_since_s or time.monotonic()
                ended = {name: states[name] for name in sorted(learners & over)}
                good_end = all(state.state in ENDED_WELL for state in ended.values())
                late = time.monotonic() - over_since_s > _ACTORS_END_S
                if names <= over or late or (learners <= over and not good_end):
                    return self._result(good_end, ended)
            elif actors and all(n in states and states[n].state in _FAILED for n in actors):
                no_actor_since_s = no_actor_since_s or time.monotonic()
                if time.monotonic() - no_actor_since_s > _LEARNER_FAILS_S:
                    return self._result(False, {n: states[n] for n in sorted(actors)})
            time.sleep(_UPDATE_S)

    def _result(self, ended_well: bool, learners: Mapping[str, ProcessState]) -> tuple[int, str]:
        record = self._launcher.record
        self._is_over.set()
        on_all(dict(self._joining).values(), self._launcher.cancel)
        answers = end_processes(record, self._machines.reached(), None, STOP_S, close=False)
        for line in problems(answers) + lost_work(answers, self._logdir):
            self._display.note(line)
        for name, answer in good(answers).items():
            if answer["left"]:
                self._display.note(f"{name}: still running: {', '.join(answer['left'])}")
        node = record.first_learner()
        lost = {n: s for n, s in learners.items() if s.exit_status not in ENDED_AS_TOLD}
        if ended_well and not lost:
            is_done = all(state.state == "finished" for state in learners.values())
            end, why = "done", (self._status or {}).get("end_reason")
            if not is_done:
                detail = next(s.detail for s in learners.values() if s.state != "finished")
                end, why = "stopped", "" if detail in (TOLD_TO_STOP, "done") else detail
            end = f"{end}: {why}" if why else end
            return 0, f"{end}; logdir {node.logdir} on {node.name}"
        failed = {n: s for n, s in learners.items() if s.state not in ENDED_WELL} or lost
        why = "; ".join(f"{n} {s.state}: {s.detail}" for n, s in failed.items())
        why = f"{why}; {MAY_BE_LOST}" if ended_well else why
        first = next(iter(failed), "NAME")
        logs = user_commands.frontend("logs", f"--logdir={self._logdir}", first)
        return 1, f"failed: {why}; see {logs}"

    def _watch(self, name: str) -> None:
        """Looks at a machine repeatedly; each machine has a thread of its own."""
        first = self._launcher.record.first_learner().name
        # The launch has already reported these errors.
        reported = {str(self._machines.found[name])} if name in self._absent else set()
        is_lost = False
        while not self._closing.is_set():
            pause_s = FIRST_LEARNER_S if name == first else LOOK_S
            try:
                has_joined = self._look_at(name)
                if is_lost and not has_joined and name not in self._absent:
                    self._notes.append(f"{name}: reachable again")
                is_lost = False
            except ClusterError as error:
                if name not in self._absent and not is_lost:
                    self._notes.append(f"{error}; its processes may still run, but are not shown")
                if name in self._absent and str(error) not in reported:
                    reported.add(str(error))
                    again = f"it is tried again every {RETRY_S:g} s"
                    self._notes.append(f"{'; '.join(error.problems)}; {again}")
                is_lost, pause_s = True, LOOK_S
            except BaseException as failure:
                self._failure = failure  # _until_over raises it in the main thread.
                return
            self._closing.wait(RETRY_S if name in self._absent else pause_s)

    def _look_at(self, name: str) -> bool:
        """Looks at a machine; returns whether it has just joined the run. Raises ClusterError."""
        runner = self._machines.found[name]
        if isinstance(runner, ClusterError):
            node = self._launcher.record.plan.node(name)
            runner = self._machines.connect([node])[name]
            if isinstance(runner, ClusterError):
                raise runner
        view = look(runner, self._launcher.record)
        if view.state is None:
            since_s = self._gone_since_s.setdefault(name, time.monotonic())
            if name not in self._absent and time.monotonic() - since_s < GONE_S:
                return False
            return self._take_in(name, runner)
        self._gone_since_s.pop(name, None)
        self._absent.discard(name)
        self._take_note(name, view, view.state)
        return False

    def _take_in(self, name: str, runner: CommandRunner) -> bool:
        """Starts the processes of a machine that has not joined the run, or has lost it."""
        record = self._launcher.record
        if name == record.first_learner().name:
            self._miss_run(runner)
            return False
        leader = self._states.get(_LEADER)
        if leader is None or leader.state in OVER:
            return False  # no run to join, or it is not known yet whether there is one
        forgotten = {process.name for process in record.plan.on(runner.node)} & self._states.keys()
        if forgotten:
            self._notes.append(f"{name}: has nothing of the run any more; starting it there again")
        for process in forgotten:
            del self._states[process]
        self._absent.add(name)
        self._joining[name] = runner
        try:
            if self._is_over.is_set():  # `_result` does not know that this machine is joining
                return False
            self._launcher.bring_in(runner)
        except ClusterError as error:
            self._machines.found[name] = error
            raise
        finally:
            del self._joining[name]
        self._absent.discard(name)
        self._notes.append(f"{name}: joined the run")
        return True

    def _miss_run(self, runner: CommandRunner) -> None:
        """Raises ClusterError: learner 0's machine has lost the run, which must not start again."""
        if not self._launcher.record.has_started:  # another launcher is about to start it
            return
        self._absent.add(runner.node.name)
        restart = user_commands.frontend("restart", f"--logdir={self._logdir}", _LEADER)
        raise ClusterError(
            f"{runner.node.name}: {runner.node.logdir} has nothing of the run any more (a disk that"
            f" is not mounted?), so learner-0 does not train; when its files are there, {restart}"
            " starts it again"
        )

    def _note_silence(self, name: str, seen: Look, state: NodeState) -> None:
        """Says that a machine has rebooted, or all was killed there, and what starts it again."""
        over = all(process.state in OVER for process in state.processes.values())
        if not seen.is_silent or over:
            if name in self._silent:
                self._notes.append(f"{name}: its supervisor is there again")
            self._silent.discard(name)
        elif name not in self._silent:
            self._silent.add(name)
            again = user_commands.frontend("restart", f"--logdir={self._logdir}", name)
            text = "its supervisor is silent, so its processes have probably ended"
            self._notes.append(f"{name}: {text}; {again} starts them again")

    def _take_note(self, name: str, seen: Look, state: NodeState) -> None:
        self._note_silence(name, seen, state)
        if 0 in seen.statuses:  # before the states: `_result` reads this once they are over
            self._status = seen.statuses[0]
        for process in state.processes.values():
            before = self._states.get(process.name)
            if process.restarts > (before.restarts if before else 0):
                how = f"exited: {process.detail}" if process.detail else "was restarted"
                self._notes.append(f"{process.name} on {name} {how}")
            if process.state in _FAILED and (before is None or before.state not in _FAILED):
                self._notes.append(f"{process.name} on {name} {process.state}: {process.detail}")
            self._states[process.name] = process
