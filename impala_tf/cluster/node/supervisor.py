"""Keeps the processes of a node running: `python -m impala_tf.cluster.node.supervisor ORDERS`.

One supervisor runs on each machine, in a tmux window, and continues when the launcher exits. It
reads its orders whenever they change, and writes its state; see `state.py`. If it is killed, its
window starts another one, which resumes from that state; see `tmux.py`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING

from impala_tf.cluster.node import state as files
from impala_tf.cluster.node.state import GroupInfo, NodeState, Orders, ProcessSpec
from impala_tf.machine import process_output
from impala_tf.machine.node import TICK_S, Node, run_end_command
from impala_tf.machine.supervision import (
    ENDED_WELL,
    OVER,
    STOP_TIMEOUT_S,
    UNUSABLE_INPUT,
    Command,
    ProcessState,
    start_ticks,
)

if TYPE_CHECKING:
    from impala_tf.cluster.node.group import Membership


class NodeSupervisor:
    """Runs the processes of a node's orders until all are over.

    Attributes:
      node: the processes that it has started.
    """

    def __init__(self, orders_file: Path, echo: bool = False, alive: IO[str] | None = None) -> None:
        """Reads the orders. Raises OSError or ValueError if they cannot be used.

        Args:
          orders_file: see `impala_tf.cluster.node.state`.
          echo: whether to print the output of the processes.
          alive: the result of `state.claim`. Default: claims the node, which log windows or an
            ending supervisor may hold for a while.
        """
        self._file = orders_file
        self._orders = files.read_orders(orders_file)
        files.processes_folder(self._orders.logdir).mkdir(parents=True, exist_ok=True)
        self._alive = alive or files.claim(self._orders.logdir, self._orders.node, float("inf"))
        self._orders_changed_ns = orders_file.stat().st_mtime_ns
        self._before = earlier_states(self._orders)
        self._ended = _for_good(self._before, self._orders)
        self.node = Node(
            lambda command, event: self._say(f"{command.name} {event}"),
            self._orders.max_hours,
            files.ran_s(self._orders),
        )
        self._members: dict[str, Membership] = {}
        self._restarts = dict(self._orders.restarts)
        self._shown: dict[str, int] | None = {} if echo else None
        self._written_s = float("-inf")
        self._written: object = None
        self._trouble = ""
        self._pid, self._boot_id = os.getpid(), files.boot_id()
        self._pid_ticks = start_ticks(self._pid) or 0

    def stop(self, *_: object) -> None:
        """Makes `run` stop everything and return. Can be a signal handler."""
        self.node.stop()

    def leave(self, *_: object) -> None:
        """Like `stop`, but the processes start again when the machine is back."""
        self.node.stop(leaving=True)

    def run_with_signals(self) -> int:
        """Runs, and stops after Ctrl-C or SIGHUP; SIGTERM comes when the machine shuts down."""
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self.stop)
        signal.signal(signal.SIGTERM, self.leave)
        return self.run()

    @property
    def has_left(self) -> bool:
        """Whether it was told to leave before its processes were over."""
        return any(state.state == "left" for state in self.node.states.values())

    def run(self) -> int:
        """Runs until everything is over; returns the exit status."""
        try:
            if self._before:
                self._say("the supervisor starts again")
                self._end_orphans()
            while not self._over():
                self._read_orders()
                self._start_new()
                self.node.tick(self._orders.stopped)
                self._write_state()
                self._echo_logs()
                time.sleep(TICK_S)
        except BaseException:
            self.node.stop(leaving=True)  # the next supervisor restarts what has not ended
            raise
        finally:
            self.node.close()
            self._write_state(always=True)
            self._echo_logs()
            for member in self._members.values():
                member.close()
            self._alive.close()
        if not self.node.leaving:
            files.remove_secrets(self._orders)
            self._read_orders()  # a failed launch has removed the command from them
            if command := self._orders.end_command:
                self._say(f"runs --end_command: {command}")
                # Its output goes to the supervisor's log, which is standard error.
                run_end_command(command, self._orders.logdir, self._states(), sys.stderr)
        states = {state.state for state in self._states().values()}
        if states <= {*ENDED_WELL, "left"}:
            return 0
        return UNUSABLE_INPUT if "refused" in states and "failed" not in states else 1

    def _states(self) -> dict[str, ProcessState]:
        """Returns the states of the processes that are over or were started by this supervisor."""
        return self._ended | self.node.states

    def _over(self) -> bool:
        names = {spec.name for spec in self._orders.processes} - {*self._orders.stopped}
        return (self.node.stopping or names <= self._states().keys()) and self.node.over

    def _read_orders(self) -> None:
        """Reads the orders again if they have changed; keeps the old ones while it cannot."""
        try:
            changed_ns = self._file.stat().st_mtime_ns
            if changed_ns != self._orders_changed_ns:
                self._orders = files.read_orders(self._file)
                self._orders_changed_ns = changed_ns
        except (OSError, ValueError) as error:
            self._say_once(f"cannot read {self._file}: {error}")

    def _start_new(self) -> None:
        for spec in self._orders.processes:
            count = self._orders.restarts.get(spec.name, 0)
            again = count > self._restarts.get(spec.name, 0)
            self._restarts[spec.name] = count
            process = self.node.processes.get(spec.name)
            if process is not None and not process.over:
                if again:
                    process.restart()
            elif self.node.stopping or spec.name in self._orders.stopped:
                continue
            elif again or spec.name not in self._states():
                self._start(spec)

    def _start(self, spec: ProcessSpec) -> None:
        orders = self._orders
        if self._shown is not None:
            log = files.log_path(orders.logdir, spec.name)
            self._shown[spec.name] = log.stat().st_size if log.exists() else 0
        script, *flags = spec.arguments
        if script.endswith(".py"):
            script = str(Path(orders.code, script))
        try:
            secrets = files.read_secrets(orders)
        except (OSError, ValueError) as error:
            # Without secrets, the process may fail in ways that are hard to understand.
            self._say(f"{spec.name} starts without {', '.join(orders.secrets)}: {error}")
            secrets = {}
        command = Command(
            spec.name,
            (sys.executable, script, *flags),
            workdir=orders.workdir or str(Path.cwd()),
            log_path=str(files.log_path(orders.logdir, spec.name)),
            environment={**secrets, **spec.environment},
            max_restarts=spec.max_restarts,
        )
        earlier = self._before.pop(spec.name, None)
        member, hooks = None, {}
        if spec.group is not None:
            try:
                member = self._member(spec.name, spec.group, earlier is not None)
            except OSError as error:
                place = f"{spec.group.hosts[0]}:{spec.group.rendezvous_port}"
                text = f"cannot take part in the group of learners, which meet at {place}: {error}"
                self._say(f"{spec.name} failed: {text}")
                self._ended[spec.name] = ProcessState(spec.name, "failed", detail=text)
                return
            hooks = {
                "before_start": member.gather,
                "on_end": member.end,
                "environment": member.environment,
                "in_group": True,
            }
        process = self.node.add(command, **hooks)
        if earlier is not None:
            process.state = process.state._replace(
                restarts=earlier.restarts + 1, detail="its supervisor was started again"
            )
        if member is not None:
            member.watch(process)
        process.start()

    def _member(self, name: str, group: GroupInfo, has_trained: bool) -> Membership:
        # Imported here: the machines of actors are small, and this takes 7 MB.
        from impala_tf.cluster.node.group import Membership

        if name not in self._members:
            folder = Path(self._orders.credentials)
            self._members[name] = Membership(
                group, self._orders.run_id, folder, self._say, has_trained
            )
        self._members[name].reopen()
        return self._members[name]

    def _end_orphans(self) -> None:
        """Ends processes of a killed supervisor, so that none runs twice.

        The kernel has told them to stop.
        """
        alive = {state.pid: state.pid_ticks for state in self._before.values() if state.pid}
        _send(alive, signal.SIGTERM)
        until_s = time.monotonic() + STOP_TIMEOUT_S
        while alive := {p: ticks for p, ticks in alive.items() if start_ticks(p) == ticks}:
            if time.monotonic() > until_s:
                _send(alive, signal.SIGKILL)
            self._write_state()
            time.sleep(TICK_S)

    def _write_state(self, always: bool = False) -> None:
        states = {name: state._replace(state="waiting") for name, state in self._before.items()}
        states |= self._states()
        now_s = time.monotonic()
        if not always and states == self._written and now_s - self._written_s < files.HEARTBEAT_S:
            return
        orders = self._orders
        state = NodeState(
            orders.run_id,
            orders.node,
            self._pid,
            self._pid_ticks,
            self._boot_id,
            files.uptime_s(),
            time.time(),
            states,
            orders.start,
        )
        try:
            files.write(files.state_path(orders.logdir, orders.node), state)
            self._written, self._written_s = states, now_s
            self._trouble = ""
        except OSError as error:  # a full disk must not end processes that still work
            self._say_once(f"cannot write its state: {error}")

    def _echo_logs(self) -> None:
        """Prints what is new in the processes' logs."""
        if self._shown is None:
            return
        for name, position in list(self._shown.items()):
            path = files.log_path(self._orders.logdir, name)
            # A full disk or a closed pipe behind standard output must not end processes.
            with contextlib.suppress(OSError), path.open("rb") as log:
                log.seek(
                    position if position <= path.stat().st_size else 0
                )  # a smaller log is a new file
                added = log.read()
                self._shown[name] = log.tell()
                sys.stdout.buffer.write(added)
                sys.stdout.buffer.flush()

    def _say(self, text: str) -> None:
        line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}"
        with contextlib.suppress(OSError):  # the window may be closed
            print(line, flush=True)
        path = files.supervisor_log(self._orders.logdir, self._orders.node)
        with contextlib.suppress(OSError), path.open("a", encoding="utf-8") as log:
            log.write(f"{line}\n")
        process_output.limit(path)

    def _say_once(self, text: str) -> None:
        if text != self._trouble:
            self._trouble = text
            self._say(text)


def earlier_states(orders: Orders) -> dict[str, ProcessState]:
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


def _for_good(known: Mapping[str, ProcessState], orders: Orders) -> dict[str, ProcessState]:
    """Returns the states of the processes that must not be started again."""
    detail = "while its supervisor was dead"
    return {
        name: state
        if state.state in OVER
        else state._replace(state="stopped", pid=None, detail=detail)
        for name, state in known.items()
        if state.state in OVER or name in orders.stopped
    }


def _send(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            # Each leads a process group; nobody else would kill what is left of the group.
            (os.killpg if number == signal.SIGKILL else os.kill)(pid, number)


def main(arguments: list[str]) -> int:
    """Supervises the node of ORDERS until its processes are over; returns the status."""
    try:
        return NodeSupervisor(Path(arguments[0])).run_with_signals()
    except Exception:
        traceback.print_exc()
        return os.EX_SOFTWARE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
