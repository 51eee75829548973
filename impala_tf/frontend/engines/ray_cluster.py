"""All that --engine=ray asks of Ray: nothing else imports it, and this does so when it is used.

The run's processes are detached, named Ray actors in a namespace of the run, so they outlive the
command that submitted them, and any later command finds them.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from impala_tf.config import ConfigError, user_commands
from impala_tf.config.addresses import split_host_port
from impala_tf.frontend.errors import ClusterError

ANSWER_S = 5.0
"""A Ray actor that does not answer within this time waits for room, or its node is lost."""
_REMOVER = "remover"
_THREADS = 8  # of a Ray actor, so that it answers several others at once
_OWN_OPTIONS = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}


class Cluster:
    """The Ray actors of one run, by name.

    Args:
      namespace: of the run.
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
          name: unique in the run.
          kind: the class.
          arguments: of its constructor.
          resources: what it takes of its node.
          group: as `reserve` returns it; None: any node.
          bundle: of the group.
        """
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        options: dict[str, Any] = {"num_cpus": 0}
        others = {key: each for key, each in resources.items() if key not in _OWN_OPTIONS}
        options |= {_OWN_OPTIONS[key]: resources[key] for key in resources.keys() - others.keys()}
        if group is not None:
            options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(group, bundle)
        self._handles[name] = (
            ray.remote(kind)
            .options(
                name=name, namespace=self.namespace, lifetime="detached", max_restarts=-1,
                max_concurrency=_THREADS, resources=others, **options,
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
          names: of the Ray actors.
          method: of their class.
          *arguments: of the method.
          answer_s: how long they have.
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
        """Ends Ray actors for good, also those without room."""
        import ray

        for name in names:
            if (handle := self._handle(name)) is not None:
                ray.kill(handle, no_restart=True)
            self._handles.pop(name, None)

    def release(self) -> None:
        """Gives back the room of the placement group, and so ends the Ray actors in it."""
        import ray

        try:
            group = ray.util.get_placement_group(self.namespace)
        except ValueError:
            return  # somebody else has done so
        ray.util.remove_placement_group(group)

    def leave(self, name: str) -> None:
        """Ends the Ray actor that calls this for good, and gives back the room of its group.

        It could not do both by itself: whichever it does first may end it. So a Ray actor outside
        the group does them, even if this one is lost as soon as this has returned.

        Args:
          name: of the Ray actor that calls this, the last of the run.
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
    """The Ray actor that removes the last one of a run, its room, and itself."""

    def __init__(self, namespace: str, name: str) -> None:
        cluster = Cluster(namespace)
        cluster.remove([name])
        cluster.release()
        cluster.remove([_REMOVER])


def connect(address: str, code: Path | None = None) -> str:
    """Connects this process to a cluster, until `disconnect`.

    Args:
      address: as --ray_address.
      code: a folder with all the code that nodes need, for a run that is to be submitted. Ray
        copies it to them.

    Returns:
      the address at which other commands find the same cluster.

    Raises:
      ConfigError: Ray is not installed, or --ray_address names no cluster.
      ClusterError: the cluster of a run is gone, or lets no process with other versions in.
    """
    try:
        import ray
    except ImportError:
        raise ConfigError(
            f"--engine=ray: needs the extra ray: {user_commands.install_extra('ray')}"
        ) from None
    # Ray itself waits for minutes.
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
        raise _no_cluster(named, error, is_flag=code is not None) from None
    except RuntimeError as error:
        raise ClusterError(f"{named}: {_first_line(error)}") from None
    return str(ray.get_runtime_context().gcs_address)


def _no_cluster(address: str, error: Exception, is_flag: bool) -> Exception:
    text = f"{address}: no Ray cluster answers there ({_first_line(error)})"
    if is_flag:
        return ConfigError(f"--ray_address={text}; ray start --head starts one")
    return ClusterError(text)


def disconnect() -> None:
    """Ends the connection. The run goes on."""
    import ray

    ray.shutdown()


def node_address() -> str:
    """Returns the address of the node that this Ray actor is on, as other nodes reach it."""
    import ray

    return str(ray.util.get_node_ip_address())


def node_id() -> str:
    """Returns the name that Ray gives to this node."""
    import ray

    return str(ray.get_runtime_context().get_node_id())


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
