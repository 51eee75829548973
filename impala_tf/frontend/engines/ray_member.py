"""The Ray actor of a process: keeps the process alive on the node where Ray has placed it.

When its node is lost, Ray creates it again elsewhere. It asks the learners' Ray actors for their
addresses, and restarts its process with the new addresses when a learner has moved.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from impala_tf.config import ConfigError, user_commands
from impala_tf.config.addresses import host_port
from impala_tf.frontend.engines import ray_cluster
from impala_tf.frontend.engines.ray_run import FAREWELL_S, Run, Seen, end
from impala_tf.frontend.node import state as files
from impala_tf.frontend.node.group import Membership
from impala_tf.frontend.plan import group_infos
from impala_tf.logdir import Logdir, in_use, replace_file
from impala_tf.machine import certificates
from impala_tf.machine.node import TICK_S, Node
from impala_tf.machine.supervision import (
    STOP_TIMEOUT_S,
    Command,
    ProcessState,
    SupervisedProcess,
    start_ticks,
)

_ASK_S, _ASK_BEFORE_START_S = 5.0, 1.0
"""How often to ask for the addresses of the learners."""
_LOG_BYTES = 20_000
_MOST_BYTES = 1 << 20
# Neither Ray's own workers nor the kernel's outgoing connections use these ports.
_FREE_PORTS = range(20_000, 32_767)


class Place(NamedTuple):
    """Where a learner is."""

    host: str
    port: int
    node: str


class Member:
    """The Ray actor of a process. Others call its methods; its own thread does the work.

    Args:
      run: the run.
      name: the name of the process.
    """

    def __init__(self, run: Run, name: str) -> None:
        self._run, self._name = run, name
        job, _, task = name.partition("-")
        self._is_learner, self._task = job == "learner", int(task)
        self._cluster = ray_cluster.Cluster(run.namespace)
        self._host = ray_cluster.node_address()
        # Stored, because Ray may replace the code's folder by an equal one, and then cwd() fails.
        self._workdir = str(Path.cwd())
        self._place = (
            Place(self._host, _free_port(), ray_cluster.node_id()) if self._is_learner else None
        )
        # The logdir may be shared, so only learner 0 keeps credentials there. mkdtemp makes it
        # 0700.
        is_first = name == "learner-0"
        folder = run.credentials if is_first else tempfile.mkdtemp(prefix=f"impala-{name}-")
        self._credentials = Path(folder)
        self._places: list[Place] = []  # of the learners, as the process knows them
        self._membership: Membership | None = None
        self._process: SupervisedProcess | None = None
        self._failure: ProcessState | None = None
        self._written: ProcessState | None = None
        self._ask_at_s = 0.0
        self._told_to_stop = self._ended = False
        ran_s = time.time() - run.started_unix_s
        self._node = Node(lambda command, text: None, run.max_hours, ran_s)
        threading.Thread(target=self._keep_running, daemon=True).start()

    def place(self) -> Place | None:
        """Returns where this learner is."""
        return self._place

    def credentials(self, role: str) -> dict[str, bytes]:
        """Returns {name: content} of the certificates of a role; {} until learner 0 has them."""
        names = certificates.ACTOR_FILES if role == "actor" else certificates.LEARNER_FILES
        try:
            return {name: (self._credentials / name).read_bytes() for name in names}
        except FileNotFoundError:
            return {}

    def look(self) -> Seen:
        """Returns the state of the process."""
        status = ""
        if self._name == "learner-0":
            with contextlib.suppress(OSError):
                status = Logdir(Path(self._run.logdir)).status().read_text()
        return Seen(self._state(), self._host, status, self._ended)

    def log(self, offset: int | None) -> tuple[int, bytes]:
        """Returns the next offset, and the output of the process after `offset` bytes.

        Args:
          offset: None for the end of the output.
        """
        try:
            with files.log_path(self._run.logdir, self._name).open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                start = max(0, size - _LOG_BYTES) if offset is None else offset
                file.seek(start if start <= size else 0)  # a shorter log is a new one
                content = file.read(_MOST_BYTES)
                return file.tell(), content
        except FileNotFoundError:
            return 0, b""

    def stop(self) -> None:
        """Stops the process for good; a learner writes a checkpoint. Returns at once."""
        self._told_to_stop = True
        self._node.stop()

    def _keep_running(self) -> None:
        try:
            self._prepare()
            while not self._is_over():
                self._follow_learners()
                self._node.tick()
                self._write_state()
                time.sleep(TICK_S)
        except ConfigError as error:
            self._failure = ProcessState(self._name, "refused", detail=str(error))
        except Exception as error:
            traceback.print_exc()  # into Ray's log
            self._failure = ProcessState(self._name, "failed", detail=repr(error))
        finally:
            self._node.close()
            self._write_state()
            if self._membership is not None:
                self._membership.close()
            if self._name != "learner-0":
                shutil.rmtree(self._credentials)
            self._ended = True
        if self._name == "learner-0":
            self._end_run()

    def _end_run(self) -> None:
        """Removes the run from Ray, once the logdir says how it ended."""
        while self._written != self._state() and not self._told_to_stop:
            time.sleep(TICK_S)
        finished = self._state().state == "finished"
        end(self._cluster, self._run, FAREWELL_S if finished else 0, self._name)

    def _prepare(self) -> None:
        try:
            files.processes_folder(self._run.logdir).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"--logdir={self._run.logdir}: cannot write there on {self._host}: {error.strerror}"
            ) from None
        if self._name == "learner-0":
            certificates.renew(self._credentials)

    def _state(self) -> ProcessState:
        if self._failure is not None:
            return self._failure
        if self._process is not None:
            return self._process.state
        if self._node.stopping:
            return ProcessState(self._name, "stopped", detail="before it was started")
        return ProcessState(self._name, detail="waits for the learners")

    def _is_over(self) -> bool:
        if self._process is None:
            return self._node.stopping
        # A process that has left starts again with the learners' new addresses.
        has_left = self._process.state.state == "left"
        return self._process.over and (self._node.stopping or not has_left)

    def _follow_learners(self) -> None:
        """Starts the process, or restarts it if a learner has moved."""
        if time.monotonic() < self._ask_at_s or self._node.stopping:
            return
        is_waiting = self._process is None or self._process.over
        self._ask_at_s = time.monotonic() + (_ASK_BEFORE_START_S if is_waiting else _ASK_S)
        names = self._run.learner_names
        answers = self._cluster.ask(names, "place")
        places = [answers[name] for name in names if name in answers]
        if len(places) < len(names) or places == self._places:
            return
        if self._process is not None and not self._process.over:
            self._process.stop(leaving=True)
        elif self._has_credentials():
            self._places = places
            self._start()

    def _has_credentials(self) -> bool:
        """Copies this role's certificates here; returns whether learner 0 has them already."""
        if self._name == "learner-0":
            return True
        role = "learner" if self._is_learner else "actor"
        answers = self._cluster.ask(["learner-0"], "credentials", role)
        contents: dict[str, bytes] = answers.get("learner-0", {})
        for name, content in contents.items():
            replace_file(self._credentials / name, content)
        return bool(contents)

    def _start(self) -> None:
        run, role = self._run, "learner" if self._is_learner else "actor"
        learner_hosts = ",".join(host_port(place.host, place.port) for place in self._places)
        own = (
            f"--job_name={role}", f"--task={self._task}", f"--learner_hosts={learner_hosts}",
            f"--credentials={self._credentials}",
        )  # fmt: skip
        command = Command(
            self._name,
            (sys.executable, *user_commands.program(), *run.flags, *own),
            workdir=self._workdir,
            log_path=str(files.log_path(run.logdir, self._name)),
            max_restarts=run.max_restarts if self._is_learner else None,
        )
        self._process = self._learner(command) if self._is_learner else self._node.add(command)
        self._process.start()

    def _learner(self, command: Command) -> SupervisedProcess:
        places = self._places
        learners = [(place.host, place.port, place.node) for place in places]
        info = group_infos(learners)[self._task]
        if info is None:
            return self._node.add(command, before_start=self._await_predecessor)
        if self._membership is not None:
            self._membership.close()
        # Learners that do not know yet that one has moved belong to another group.
        group = " ".join([self._run.namespace, *map(str, places)])
        member = Membership(info, group, self._credentials, self._log_event)
        self._membership = member

        def before_start(stopping: Callable[[], bool]) -> bool:
            return self._await_predecessor(stopping) and member.gather(stopping)

        process = self._node.add(
            command,
            before_start=before_start,
            on_end=member.end,
            environment=member.environment,
            in_group=True,
        )
        member.watch(process)
        return process

    def _await_predecessor(self, stopping: Callable[[], bool]) -> bool:
        """Waits while a learner 0 that Ray considers lost still writes to a shared logdir."""
        path = Logdir(Path(self._run.logdir)).metrics
        until_s = time.monotonic() + STOP_TIMEOUT_S
        while self._task == 0 and not stopping() and time.monotonic() < until_s:
            if not in_use(path):
                break
            time.sleep(TICK_S)
        return not stopping()

    def _log_event(self, text: str) -> None:
        path = files.log_path(self._run.logdir, self._name)
        # A full disk must not end a process that still works.
        with contextlib.suppress(OSError), path.open("a", encoding="utf-8") as log:
            log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")

    def _write_state(self) -> None:
        """Writes the state to the logdir, for commands after the run has left Ray."""
        state = self._state()
        if state == self._written:
            return
        node = f"node-{self._name}"
        pid = os.getpid()
        whole = files.NodeState(
            self._run.namespace, node, pid, start_ticks(pid) or 0, files.boot_id(),
            files.uptime_s(), time.time(), {self._name: state},
        )  # fmt: skip
        with contextlib.suppress(OSError):  # as above
            files.write(files.state_path(self._run.logdir, node), whole)
            self._written = state


def _free_port() -> int:
    """Returns a port that is free now, as is the next one, where several learners meet."""
    for port in random.sample(_FREE_PORTS, len(_FREE_PORTS)):
        with socket.socket() as own, socket.socket() as after, contextlib.suppress(OSError):
            own.bind(("", port))
            after.bind(("", port + 1))
            return port
    raise OSError("no two ports from 20000 to 32767 are free")
