"""Everything that --engine=ray needs of Ray. Only this module imports it, and only when it is used.

The run's processes are detached, named Ray actors in a namespace of the run, so they outlive the
command that submitted them, and later commands can find them.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from impala_tf.config import ConfigError, user_commands
from impala_tf.config.addresses import split_host_port
from impala_tf.frontend.runner import ClusterError
from impala_tf.machine.supervision import STOP_TIMEOUT_S, ProcessState

ANSWER_S = 5.0
"""How long a Ray actor has to answer. If it does not, it waits for room, or its node is lost."""
FAREWELL_S = 10.0
"""How long actors may take to hear from a learner that the run is over, and to exit."""
_POLL_S = 0.5
_REMOVER = "remover"
_THREADS = 8  # for each Ray actor, so that it can answer several others at once
_OWN_OPTIONS = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}


class Run(NamedTuple):
    """A run, as all of its processes know it."""

    namespace: str
    """The namespace of its Ray actors, which are called like its processes: learner-0, actor-2."""
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
    status: str
    """Learner 0's status.json; '' if there is none, and for other processes."""
    is_over: bool
    """Whether the process has ended for good; its state is then in the logdir, if possible."""


class Cluster:
    """The Ray actors of one run, by name.

    Args:
      namespace: the run's namespace.
    """

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self._handles: dict[str, Any] = {}

    def reserve(self, bundles: Sequence[Mapping[str, float]]) -> Any:
        """Asks for room for all bundles at once, now or later; returns Ray's placement group."""
        from ray.util.placement_group import placement_group

        return placement_group(
            [dict(bundle) for bundle in bundles],
            strategy="PACK",
            name=self.namespace,
            lifetime="detached",
        )

    def create(
        self,
        name: str,
        kind: type,
        arguments: Sequence[Any],
        resources: Mapping[str, float],
        group: Any = None,
        bundle: int = -1,
    ) -> None:
        """Creates a Ray actor as soon as it has room, and again whenever its node is lost.

        Args:
          name: a unique name in the run.
          kind: the class.
          arguments: the arguments of its constructor.
          resources: the resources it takes of its node.
          group: the result of `reserve`; None for any node.
          bundle: the index of the bundle in the group.
        """
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        options: dict[str, Any] = {"num_cpus": 0}
        custom = {key: amount for key, amount in resources.items() if key not in _OWN_OPTIONS}
        options |= {_OWN_OPTIONS[key]: resources[key] for key in resources.keys() - custom.keys()}
        if group is not None:
            options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(group, bundle)
        self._handles[name] = (
            ray.remote(kind)
            .options(
                name=name, namespace=self.namespace, lifetime="detached", max_restarts=-1,
                max_concurrency=_THREADS, resources=custom, **options,
            )
            .remote(*arguments)
        )  # fmt: skip

    def has(self, name: str) -> bool:
        """Tells whether there is such a Ray actor, with or without room."""
        self._handles.pop(name, None)
        return self._handle(name) is not None

    def ask(
        self, names: Iterable[str], method: str, *arguments: Any, answer_s: float = ANSWER_S
    ) -> dict[str, Any]:
        """Calls a method of several Ray actors; returns {name: answer} of those that answer.

        Args:
          names: the names of the Ray actors.
          method: the name of the method.
          *arguments: the arguments of the method.
          answer_s: how long they have to answer.
        """
        import ray
        from ray.exceptions import RayActorError

        handles = {name: handle for name in names if (handle := self._handle(name)) is not None}
        calls = {getattr(each, method).remote(*arguments): name for name, each in handles.items()}
        if not calls:
            return {}
        ready, _ = ray.wait(list(calls), num_returns=len(calls), timeout=answer_s)
        answers = {}
        for call in ready:
            try:
                answers[calls[call]] = ray.get(call)
            except RayActorError:  # its node was lost, or it was removed
                self._handles.pop(calls[call], None)
        return answers

    def remove(self, names: Iterable[str]) -> None:
        """Ends Ray actors for good, even those without room."""
        import ray

        for name in names:
            if (handle := self._handle(name)) is not None:
                ray.kill(handle, no_restart=True)
            self._handles.pop(name, None)

    def release(self) -> None:
        """Frees the room of the placement group, which also ends the Ray actors in it."""
        import ray

        try:
            group = ray.util.get_placement_group(self.namespace)
        except ValueError:
            return  # another process has freed it
        ray.util.remove_placement_group(group)

    def leave(self, name: str) -> None:
        """Ends the Ray actor that calls this for good, and frees the room of its group.

        The caller cannot do both itself, as either may end it. So a Ray actor outside the group
        does both, even if the caller is lost as soon as this returns.

        Args:
          name: the name of the caller, the last Ray actor of the run.
        """
        import ray

        remover = (
            ray.remote(_Remover)
            .options(name=_REMOVER, namespace=self.namespace, lifetime="detached", num_cpus=0)
            .remote(self.namespace, name)
        )
        # Ray never starts an actor whose creator ends too early.
        ray.wait([remover.__ray_ready__.remote()])

    def _handle(self, name: str) -> Any:
        import ray

        if name not in self._handles:
            try:
                self._handles[name] = ray.get_actor(name, namespace=self.namespace)
            except ValueError:
                return None
        return self._handles[name]


class _Remover:
    """The Ray actor that removes a run's last Ray actor, its room, and itself."""

    def __init__(self, namespace: str, name: str) -> None:
        cluster = Cluster(namespace)
        cluster.remove([name])
        cluster.release()
        cluster.remove([_REMOVER])


def end(cluster: Cluster, run: Run, patience_s: float, itself: str = "") -> None:
    """Stops what is still running, learners first, and removes the run from Ray.

    Args:
      cluster: the connected cluster.
      run: the run.
      patience_s: how long actors may take to end by themselves.
      itself: the process whose Ray actor calls this, if one does. It must be over, and this call
        does not return.
    """
    others = [name for name in run.names if name != itself]
    answers = cluster.ask(others, "look")
    cluster.remove(name for name in others if name not in answers)
    learners = [name for name in run.learner_names if name in answers]
    # Learners of a group end together; then the remaining ones are told to stop.
    _wait_until_over(cluster, learners, FAREWELL_S if itself else 0)
    cluster.ask(learners, "stop")
    _wait_until_over(cluster, learners, STOP_TIMEOUT_S)
    _wait_until_over(cluster, answers, patience_s)
    cluster.ask(answers, "stop")
    _wait_until_over(cluster, answers, STOP_TIMEOUT_S)
    cluster.remove(others)
    if itself:
        cluster.leave(itself)
    else:
        cluster.release()


def _wait_until_over(cluster: Cluster, names: Iterable[str], timeout_s: float) -> None:
    """Waits for the processes that answer; the nodes of the others are lost."""
    names = list(names)
    until_s = time.monotonic() + timeout_s
    while names and time.monotonic() < until_s:
        seen: dict[str, Seen] = cluster.ask(names, "look")
        names = [name for name in names if name in seen and not seen[name].is_over]
        if names:
            time.sleep(_POLL_S)


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
        raise _no_cluster(named, error, is_submission=code is not None) from None
    except RuntimeError as error:
        raise ClusterError(f"{named}: {_first_line(error)}") from None
    return str(ray.get_runtime_context().gcs_address)


def _no_cluster(address: str, error: Exception, is_submission: bool) -> Exception:
    text = f"no Ray cluster answers there ({_first_line(error)})"
    if not is_submission:
        return ClusterError(f"{address}: {text}")
    return ConfigError(
        f"RAY_ADDRESS={address}: {text}; ray start --head starts one on this machine, and"
        " RAY_ADDRESS=HOST:PORT names another one"
    )


def disconnect() -> None:
    """Ends the connection. The run continues."""
    import ray

    ray.shutdown()


def node_address() -> str:
    """Returns the address at which other nodes reach this Ray actor's node."""
    import ray

    return str(ray.util.get_node_ip_address())


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
