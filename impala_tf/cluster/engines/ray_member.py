"""The Ray actor of a process: runs the process's node of the job where Ray has placed it.

When its Ray node is lost, Ray creates it again elsewhere. It starts its process as `--join` does,
as soon as it is told where the learners are, and again when a learner has moved.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import socket
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from impala_tf.cluster import join
from impala_tf.cluster.node import state as files
from impala_tf.cluster.node.supervisor import NodeSupervisor
from impala_tf.config import ConfigError, command_line
from impala_tf.config.addresses import host_port
from impala_tf.logdir import Logdir, replace_file
from impala_tf.machine import certificates
from impala_tf.machine.supervision import ProcessState

_POLL_S = 0.5
_LOG_BYTES = 20_000
_MOST_BYTES = 1 << 20
# Neither Ray's own workers nor the kernel's outgoing connections use these ports.
_FREE_PORTS = range(20_000, 32_767)


class Run(NamedTuple):
    """A run, as all of its processes know it."""

    namespace: str
    """The namespace of its manager."""
    logdir: str
    """Absolute, on every node."""
    credentials: str
    """Folder of the certificates on learner 0's node; absolute."""
    learners: int
    actors: int
    flags: tuple[str, ...]
    """The flags of every process, and --max_hours."""
    started_unix_s: float

    @property
    def learner_names(self) -> list[str]:
        """The names of the learners."""
        return [f"learner-{task}" for task in range(self.learners)]

    @property
    def names(self) -> list[str]:
        """The names of all processes, learners first."""
        return [*self.learner_names, *(f"actor-{task}" for task in range(self.actors))]


class Seen(NamedTuple):
    """What the Ray actor of a process reports."""

    state: ProcessState
    host: str
    """The address of its node."""
    address: str
    """Where a learner listens, host:port; '' for an actor."""
    learners: list[str]
    """The addresses of the learners that it was told."""
    status: str
    """Learner 0's status.json; '' if there is none, and for other processes."""
    is_over: bool
    """Whether the process has ended for good; its state is then in the logdir, if possible."""


class Member:
    """The Ray actor of a process. The run's manager calls its methods; a thread does the work.

    Args:
      run: the run.
      name: the name of the process.
    """

    def __init__(self, run: Run, name: str) -> None:
        import ray

        self._run, self._name = run, name
        self._job, _, self._task = name.partition("-")
        self._host = str(ray.util.get_node_ip_address())
        # Stored, because Ray may replace the code's folder by an equal one, and then cwd() fails.
        self._workdir = str(Path.cwd())
        self._address = host_port(self._host, _free_port()) if self._job == "learner" else ""
        # The logdir may be shared, so only learner 0 keeps credentials there. mkdtemp makes it
        # 0700.
        is_first = name == "learner-0"
        folder = run.credentials if is_first else tempfile.mkdtemp(prefix=f"impala-{name}-")
        self._credentials = Path(folder)
        self._learners: list[str] = []  # their addresses, as it was told
        self._supervisor: NodeSupervisor | None = None
        self._failure: ProcessState | None = None
        self._told_to_stop = self._is_over = False
        threading.Thread(target=self._keep_running, daemon=True).start()

    def look(self) -> Seen:
        """Returns the state of the process."""
        status = ""
        if self._name == "learner-0":
            with contextlib.suppress(OSError):
                status = Logdir(Path(self._run.logdir)).status().read_text()
        return Seen(self._state(), self._host, self._address, self._learners, status, self._is_over)

    def certificates(self) -> dict[str, dict[str, bytes]]:
        """Returns {role: {file name: content}}; {} until learner 0, which this is, has them."""
        names = {"actor": certificates.ACTOR_FILES, "learner": certificates.LEARNER_FILES}
        try:
            return {
                role: {name: (self._credentials / name).read_bytes() for name in files_of_role}
                for role, files_of_role in names.items()
            }
        except FileNotFoundError:
            return {}

    def tell(self, learners: list[str], contents: Mapping[str, bytes]) -> None:
        """Starts the process, or lets it start again if a learner has moved.

        Args:
          learners: the host:port of all learners.
          contents: {file name: content} of the certificates of its role; {} for learner 0.
        """
        for name, content in contents.items():
            replace_file(self._credentials / name, content)
        self._learners = learners
        if self._supervisor is not None:
            self._supervisor.leave()

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
        if self._supervisor is not None:
            self._supervisor.stop()

    def _keep_running(self) -> None:
        try:
            while self._run_once():
                pass
        except ConfigError as error:
            self._failure = ProcessState(self._name, "refused", detail=str(error))
        except Exception as error:
            traceback.print_exc()  # into Ray's log
            self._failure = ProcessState(self._name, "failed", detail=repr(error))
        while self._failure is not None and not self._told_to_stop:  # the logdir may not say it
            time.sleep(_POLL_S)
        if self._name != "learner-0":
            shutil.rmtree(self._credentials, ignore_errors=True)
        self._is_over = True

    def _run_once(self) -> bool:
        """Runs the process until it is over; returns whether to start it with new addresses."""
        while not self._learners and not self._told_to_stop:
            time.sleep(_POLL_S)
        if self._told_to_stop:
            return False
        run, learners = self._run, self._learners
        given = command_line.parse(
            [
                *run.flags,
                f"--job_name={self._job}",
                f"--task={self._task}",
                "--actors_per_node=1",
                f"--learner_hosts={','.join(learners)}",
                f"--credentials={self._credentials}",
            ]
        )
        supervisor = join.supervisor_of(
            given, workdir=self._workdir, started_unix_s=run.started_unix_s, started_boot_id=""
        )
        self._supervisor = supervisor
        if self._told_to_stop:
            supervisor.stop()
        elif learners != self._learners:
            supervisor.leave()
        supervisor.run()
        return supervisor.has_left or self._name not in supervisor.node.states

    def _state(self) -> ProcessState:
        if self._failure is not None:
            return self._failure
        if self._supervisor is not None and self._name in self._supervisor.node.states:
            return self._supervisor.node.states[self._name]
        if self._told_to_stop:
            return ProcessState(self._name, "stopped", detail="before it was started")
        return ProcessState(self._name, detail="waits for the learners")


def _free_port() -> int:
    """Returns a port that is free now, as is the next one, where several learners meet."""
    for port in random.sample(_FREE_PORTS, len(_FREE_PORTS)):
        with socket.socket() as own, socket.socket() as after, contextlib.suppress(OSError):
            own.bind(("", port))
            after.bind(("", port + 1))
            return port
    raise OSError("no two ports from 20000 to 32767 are free")
