"""Keeps the processes of a node running: `python -m impala_tf.frontend.node.supervisor ORDERS`.

One supervisor runs on each machine, in a tmux window, and continues when the launcher exits. It
reads its orders whenever they change, and writes its state; see `state.py`. If it is killed, its
window starts another one, which resumes from that state; see `tmux.py`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING

from impala_tf.frontend.node import recovery
from impala_tf.frontend.node import state as files
from impala_tf.frontend.node.state import GroupInfo, NodeState, ProcessSpec
from impala_tf.logdir import lock
from impala_tf.machine import process_logs
from impala_tf.machine.node import TICK_S, Node, run_end_command
from impala_tf.machine.supervision import (
    ENDED_WELL,
    STOP_TIMEOUT_S,
    UNUSABLE_INPUT,
    Command,
    GiveUpError,
    ProcessState,
    SupervisedProcess,
    start_ticks,
)

if TYPE_CHECKING:
    from impala_tf.frontend.node.group import Membership


class NodeSupervisor:
    """Runs the processes of a node's orders until all are over.

    Attributes:
      node: the processes that it has started.
    """

    def __init__(self, orders_file: Path, echo: bool = False, alive: IO[str] | None = None) -> None:
        """Reads the orders. Raises OSError or ValueError if they cannot be used.

        Args:
          orders_file: see `impala_tf.frontend.node.state`.
          echo: whether to print the output of the processes.
          alive: the node's `lock_path`, open and locked. Default: opens it and waits for the lock,
            which log windows or an ending supervisor may hold for a while.
        """
        self._file = orders_file
        self._orders = files.read_orders(orders_file)
        files.processes_folder(self._orders.logdir).mkdir(parents=True, exist_ok=True)
        self._alive = alive or self._locked()
        self._orders_changed_ns = orders_file.stat().st_mtime_ns
        self._before = recovery.before(self._orders)
        self._ended = recovery.ended(self._before, self._orders)
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

    def _locked(self) -> IO[str]:
        path = files.lock_path(self._orders.logdir, self._orders.node)
        file = path.open("w")
        lock(file.fileno(), path, fcntl.LOCK_EX)
        return file

    def stop(self, *_: object) -> None:
        """Makes `run` stop everything and return. Can be a signal handler."""
        self.node.stop()

    def leave(self, *_: object) -> None:
        """Like `stop`, but the processes start again when the machine is back."""
        self.node.stop(leaving=True)

    def run(self) -> int:
        """Runs until everything is over; returns the exit status."""
        try:
            if self._before:
                self._say("the supervisor starts again: the one before was killed")
                recovery.end_orphans(self._before, STOP_TIMEOUT_S, self._write_state)
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
        if spec.group is None:
            process = self.node.add(command)
        else:
            process = self._supervised_in_group(command, spec.group, earlier is not None)
        if earlier is not None:
            process.state = process.state._replace(
                restarts=earlier.restarts + 1, detail="its supervisor was started again"
            )
        process.start()

    def _supervised_in_group(
        self, command: Command, group: GroupInfo, has_trained: bool
    ) -> SupervisedProcess:
        # Imported here: the machines of actors are small, and this takes 7 MB.
        from impala_tf.frontend.node.group import Membership

        member = self._members.get(command.name)
        try:
            if member is None:
                run_id, folder = self._orders.run_id, Path(self._orders.credentials)
                member = Membership(group, run_id, folder, self._say, has_trained)
                self._members[command.name] = member
            member.reopen()
        except OSError as error:
            place = f"{group.hosts[0]}:{group.rendezvous_port}"
            text = f"cannot take part in the group of learners, which meet at {place}: {error}"

            def refuse(stopping: Callable[[], bool]) -> bool:
                raise GiveUpError(text)

            return self.node.add(command, before_start=refuse)
        process = self.node.add(
            command,
            before_start=member.gather,
            on_end=member.end,
            environment=member.environment,
            in_group=True,
        )
        member.watch(process)
        return process

    def _write_state(self, always: bool = False) -> None:
        states = {name: state._replace(state="waiting") for name, state in self._before.items()}
        states |= self._states()
        now_s = time.monotonic()
        if not always and states == self._written and now_s - self._written_s < files.HEARTBEAT_S:
            return
        orders = self._orders
        state = NodeState(
            orders.run_id, orders.node, self._pid, self._pid_ticks, self._boot_id,
            files.uptime_s(), time.time(), states, orders.start,
        )  # fmt: skip
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
        process_logs.limit(path)

    def _say_once(self, text: str) -> None:
        if text != self._trouble:
            self._trouble = text
            self._say(text)


def main(arguments: list[str]) -> int:
    """Supervises the node of ORDERS [--echo] until its processes are over; returns the status."""
    try:
        supervisor = NodeSupervisor(Path(arguments[0]), echo=len(arguments) == 2)
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, supervisor.stop)
        signal.signal(signal.SIGTERM, supervisor.leave)  # sent when the machine shuts down
        return supervisor.run()
    except Exception:
        traceback.print_exc()
        return os.EX_SOFTWARE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
