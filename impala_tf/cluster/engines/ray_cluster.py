"""What --engine=ray keeps in a cluster: a run's manager, which has the Ray actors of its processes.

The manager is a detached, named Ray actor, so it outlives the command that submitted the run, and
later commands can find it. It creates a Ray actor for each process, which Ray ends with it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from impala_tf.cluster.engines.ray_member import Member, Run, Seen
from impala_tf.cluster.runner import ClusterError
from impala_tf.config import ConfigError, user_commands
from impala_tf.config.addresses import split_host_port
from impala_tf.machine.supervision import STOP_TIMEOUT_S

ANSWER_S = 5.0
"""How long a Ray actor has to answer. If it does not, it waits for room, or its node is lost."""
BUSY_S = 60.0
"""How long a learner has to answer a stop on a busy node: if it does not, it saves nothing."""
_FAREWELL_S = 10.0
"""How long processes may take to hear from a learner that the run is over, and to exit."""
_POLL_S = 1.0
_MANAGER = "manager"
_HEAD = {"node:__internal_head__": 0.001}  # the manager is not lost unless the cluster is
_THREADS = 8  # for each Ray actor, so that it can answer several others at once
_OWN_OPTIONS = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}


class Manager:
    """The Ray actor of a run. It tells the processes where the learners are, and ends the run.

    Learners and the first actor share a placement group, so they get room together.

    Args:
      run: the run.
      takes: {role: {resource: amount}} of a process.
    """

    def __init__(self, run: Run, takes: Mapping[str, Mapping[str, float]]) -> None:
        from ray.util.placement_group import placement_group

        self._run = run
        self._seen: dict[str, Seen] = {}
        self._is_stopping = False
        self._group = placement_group(
            [dict(takes[_role(name)]) for name in self._first], strategy="PACK"
        )
        self._members = {name: self._create(name, takes[_role(name)]) for name in run.names}
        threading.Thread(target=self._manage, daemon=True).start()

    def look(self) -> dict[str, Seen]:
        """Returns what the Ray actors of processes that have room report."""
        return self._seen

    def log(self, name: str, offset: int | None) -> tuple[int | None, bytes]:
        """Returns the answer of a process's `Member.log`, or nothing new if it does not answer."""
        answer: tuple[int | None, bytes]
        answer = self._ask([name], "log", offset).get(name, (offset, b""))
        return answer

    def stop(self) -> bool:
        """Lets the run end; returns whether learner 0 will write a checkpoint."""
        answers = self._ask(self._run.learner_names, "stop", answer_s=BUSY_S)
        self._is_stopping = True
        return "learner-0" in answers

    @property
    def _first(self) -> list[str]:
        return [*self._run.learner_names, "actor-0"]

    def _create(self, name: str, takes: Mapping[str, float]) -> Any:
        """Creates the Ray actor of a process, which Ray creates again when its node is lost."""
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        options: dict[str, Any] = {"num_cpus": 0}
        options |= {own: takes[key] for key, own in _OWN_OPTIONS.items() if key in takes}
        if name in self._first:
            place = PlacementGroupSchedulingStrategy(self._group, self._first.index(name))
            options["scheduling_strategy"] = place
        custom = {key: amount for key, amount in takes.items() if key not in _OWN_OPTIONS}
        actor = ray.remote(Member).options(
            max_restarts=-1, max_concurrency=_THREADS, resources=custom, **options
        )
        return actor.remote(self._run, name)

    def _ask(
        self, names: Iterable[str], method: str, *arguments: Any, answer_s: float = ANSWER_S
    ) -> dict[str, Any]:
        """Calls a method of several Ray actors; returns {name: answer} of those that answer."""
        import ray
        from ray.exceptions import RayActorError

        calls = {getattr(self._members[name], method).remote(*arguments): name for name in names}
        if not calls:
            return {}
        ready, _ = ray.wait(list(calls), num_returns=len(calls), timeout=answer_s)
        answers = {}
        for call in ready:
            with contextlib.suppress(RayActorError):  # its node was lost
                answers[calls[call]] = ray.get(call)
        return answers

    def _manage(self) -> None:
        try:
            while not self._is_stopping and not self._over("learner-0"):
                self._look_around()
                time.sleep(_POLL_S)
            self._end()
        except Exception:
            traceback.print_exc()
            os._exit(1)  # Ray starts the run again, which resumes

    def _look_around(self) -> None:
        """Looks at all processes, and tells those that do not know it where the learners are."""
        run = self._run
        self._seen = self._ask(run.names, "look")
        learners = [self._seen[name].address for name in run.learner_names if name in self._seen]
        if len(learners) < run.learners:
            return
        waiting = [name for name, seen in self._seen.items() if seen.learners != learners]
        contents = self._ask(["learner-0"], "certificates").get("learner-0") if waiting else {}
        for name in waiting:
            if name == "learner-0":
                self._ask([name], "tell", learners, {})
            elif contents:
                self._ask([name], "tell", learners, contents[_role(name)])

    def _over(self, name: str) -> bool:
        return name in self._seen and self._seen[name].is_over

    def _end(self) -> None:
        """Stops what is still running, learners first, and removes the run from Ray."""
        import ray

        run, learners = self._run, self._run.learner_names
        if not self._is_stopping:  # learners of a group end together, and tell their actors
            self._wait_until_over(learners, _FAREWELL_S)
        self._ask(learners, "stop")
        self._wait_until_over(learners, STOP_TIMEOUT_S)
        there = list(self._seen)
        if not self._is_stopping:
            self._wait_until_over(there, _FAREWELL_S)
        self._ask(there, "stop")
        self._wait_until_over(there, STOP_TIMEOUT_S)
        ray.kill(ray.get_actor(_MANAGER, namespace=run.namespace), no_restart=True)

    def _wait_until_over(self, names: Iterable[str], timeout_s: float) -> None:
        """Waits for the processes that answer; the nodes of the others are lost."""
        until_s = time.monotonic() + timeout_s
        while time.monotonic() < until_s:
            self._seen |= (seen := self._ask(names, "look"))
            if all(each.is_over for each in seen.values()):
                return
            time.sleep(_POLL_S)


def _role(name: str) -> str:
    return name.partition("-")[0]


def create(run: Run, takes: Mapping[str, Mapping[str, float]]) -> None:
    """Creates the manager of a run. Raises an error of Ray, and then leaves nothing there."""
    import ray

    manager = (
        ray.remote(Manager)
        .options(
            name=_MANAGER,
            namespace=run.namespace,
            lifetime="detached",
            max_restarts=-1,
            max_concurrency=_THREADS,
            num_cpus=0,
            resources=_HEAD,
        )
        .remote(run, takes)
    )
    ray.get(manager.__ray_ready__.remote())


def ask(run: Run, method: str, *arguments: Any) -> Any:
    """Calls a method of a run's manager; returns its answer, or None once the run has left Ray.

    Raises:
      ClusterError: it does not answer.
    """
    import ray
    from ray.exceptions import GetTimeoutError, RayActorError

    try:
        manager = ray.get_actor(_MANAGER, namespace=run.namespace)
        return ray.get(getattr(manager, method).remote(*arguments), timeout=2 * BUSY_S)
    except (ValueError, RayActorError):
        return None
    except GetTimeoutError:
        raise ClusterError(f"the run on Ray does not answer within {2 * BUSY_S:g} s") from None


def connect(address: str, code: Path | None = None) -> str:
    """Connects this process to a cluster, until `disconnect`.

    Args:
      address: the cluster's, or auto for what RAY_ADDRESS says, or the one that runs here.
      code: to submit a run, a folder with all the code that nodes need, which Ray copies to them.

    Returns:
      The address at which other commands can find the same cluster.

    Raises:
      ConfigError: Ray is not installed, or RAY_ADDRESS names no cluster.
      ClusterError: the cluster of a run is gone, or refuses this version of Ray or Python.
    """
    try:
        import ray
    except ImportError:
        raise ConfigError(
            f"--engine=ray: needs the extra ray: {user_commands.install_extra('ray')}"
        ) from None
    # Checked here, because Ray itself would wait for minutes.
    named = os.environ.get("RAY_ADDRESS") or address if address == "auto" else address
    if "://" in named:
        raise ConfigError(
            f"RAY_ADDRESS={named}: must be HOST:PORT; run this on a node of the cluster"
        )
    try:
        if named != "auto":
            socket.create_connection(split_host_port(named), ANSWER_S).close()
        environment = {} if code is None else {"working_dir": str(code)}
        ray.init(address, runtime_env=environment, log_to_driver=False, logging_level="error")
    except (OSError, ValueError) as error:
        text = f"no Ray cluster answers there ({_first_line(error)})"
        if code is None:
            raise ClusterError(f"{named}: {text}") from None
        raise ConfigError(
            f"RAY_ADDRESS={named}: {text}; ray start --head starts one on this machine, and"
            " RAY_ADDRESS=HOST:PORT names another one"
        ) from None
    except RuntimeError as error:
        raise ClusterError(f"{named}: {_first_line(error)}") from None
    return str(ray.get_runtime_context().gcs_address)


def disconnect() -> None:
    """Ends the connection. The run continues."""
    import ray

    ray.shutdown()


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
