"""The Ray actor of a process: keeps the process alive on the node where Ray has placed it.

When its node is lost, Ray creates it again elsewhere. It asks the learners' Ray actors for their
addresses, and starts its process as a node of a job does (`join`), again with the new addresses
when a learner has moved.
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
from pathlib import Path

from impala_tf.config import ConfigError, command_line
from impala_tf.config.addresses import host_port
from impala_tf.frontend import join
from impala_tf.frontend.engines import ray_cluster
from impala_tf.frontend.engines.ray_cluster import FAREWELL_S, Run, Seen, end
from impala_tf.frontend.node import state as files
from impala_tf.frontend.node.supervisor import NodeSupervisor
from impala_tf.logdir import Logdir, replace_file
from impala_tf.machine import certificates
from impala_tf.machine.supervision import ProcessState

_ASK_S, _ASK_BEFORE_START_S = 5.0, 1.0
"""How often to ask for the addresses of the learners."""
_LOG_BYTES = 20_000
_MOST_BYTES = 1 << 20
# Neither Ray's own workers nor the kernel's outgoing connections use these ports.
_FREE_PORTS = range(20_000, 32_767)


class Member:
    """The Ray actor of a process. Others call its methods; its own threads do the work.

    Args:
      run: the run.
      name: the name of the process.
    """

    def __init__(self, run: Run, name: str) -> None:
        self._run, self._name = run, name
        self._job, _, self._task = name.partition("-")
        self._cluster = ray_cluster.Cluster(run.namespace)
        self._host = ray_cluster.node_address()
        # Stored, because Ray may replace the code's folder by an equal one, and then cwd() fails.
        self._workdir = str(Path.cwd())
        is_learner = self._job == "learner"
        self._address = host_port(self._host, _free_port()) if is_learner else None
        # The logdir may be shared, so only learner 0 keeps credentials there. mkdtemp makes it
        # 0700.
        is_first = name == "learner-0"
        folder = run.credentials if is_first else tempfile.mkdtemp(prefix=f"impala-{name}-")
        self._credentials = Path(folder)
        self._learners: list[str] = []  # their addresses, as the process knows them
        self._supervisor: NodeSupervisor | None = None
        self._failure: ProcessState | None = None
        self._told_to_stop = self._ended = False
        for work in (self._keep_running, self._follow_learners):
            threading.Thread(target=work, daemon=True).start()

    def address(self) -> str | None:
        """Returns the host:port of this learner; None for an actor."""
        return self._address

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
        if self._supervisor is not None:
            self._supervisor.stop()

    def _keep_running(self) -> None:
        try:
            while not self._told_to_stop and self._run_once():
                pass
        except ConfigError as error:
            self._failure = ProcessState(self._name, "refused", detail=str(error))
        except Exception as error:
            traceback.print_exc()  # into Ray's log
            self._failure = ProcessState(self._name, "failed", detail=repr(error))
        finally:
            if self._name != "learner-0":
                shutil.rmtree(self._credentials)
            self._ended = True
        if self._name == "learner-0":
            self._end_run()

    def _run_once(self) -> bool:
        """Runs the process until it is over; returns whether to start it with new addresses."""
        while len(self._learners) < self._run.learners or not self._has_credentials():
            if self._told_to_stop:
                return False
            time.sleep(_ASK_BEFORE_START_S)
        run, learners = self._run, list(self._learners)
        given = command_line.parse(
            [*run.flags, f"--job_name={self._job}", f"--task={self._task}", "--actors_per_node=1",
             f"--learner_hosts={','.join(learners)}", f"--credentials={self._credentials}"]
        )  # fmt: skip
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

    def _follow_learners(self) -> None:
        """Asks for the learners' addresses, and lets the process leave if one has moved."""
        while not self._ended:
            answers = self._cluster.ask(self._run.learner_names, "address")
            found = [answers[name] for name in self._run.learner_names if name in answers]
            if len(found) == self._run.learners and found != self._learners:
                self._learners = found
                if self._supervisor is not None:
                    self._supervisor.leave()
            time.sleep(_ASK_S if self._learners else _ASK_BEFORE_START_S)

    def _has_credentials(self) -> bool:
        """Copies this role's certificates here; returns whether learner 0 has them already."""
        if self._name == "learner-0":
            return True
        answers = self._cluster.ask(["learner-0"], "credentials", self._job)
        contents: dict[str, bytes] = answers.get("learner-0", {})
        for name, content in contents.items():
            replace_file(self._credentials / name, content)
        return bool(contents)

    def _end_run(self) -> None:
        """Removes the run from Ray, once somebody can see how it ended."""
        while self._failure is not None and not self._told_to_stop:  # the logdir may not say it
            time.sleep(_ASK_S)
        finished = self._state().state == "finished"
        end(self._cluster, self._run, FAREWELL_S if finished else 0, self._name)

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
