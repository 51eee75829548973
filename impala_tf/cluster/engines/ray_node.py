"""A run's nodes on a Ray cluster: a Ray actor for each, which starts the supervisor of `--join`.

A detached placement group reserves every node's room, each on another Ray node. When a Ray node is
lost, Ray gives its room and its Ray actor to another one. The Ray actors find each other by name:
they tell their hosts, and start their processes again when a learner has moved. Learner 0's ends
the run.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from impala_tf.cluster import join
from impala_tf.config import Given, command_line
from impala_tf.config.addresses import host_port
from impala_tf.machine.supervision import STOP_TIMEOUT_S

ANSWER_S = 5.0
"""How long a Ray actor has to answer. If it does not, it waits for room, or its node is lost."""
_FAREWELL_S = 10.0
"""How long processes may take to hear from a learner that the run is over, and to exit."""
_POLL_S = 1.0
_LOOKUPS = 3  # a busy cluster may miss a Ray actor once


class Run(NamedTuple):
    """A run, as all of its nodes know it."""

    namespace: str
    """Of its Ray actors, which have the names of their nodes; also its placement group's name."""
    learners: int
    """How many nodes have a learner."""
    actor_nodes: int
    """How many nodes have actors."""
    actors: int
    """How many actors there are on all nodes."""
    port: int
    """Where learners listen."""
    flags: tuple[str, ...]
    """The flags of every node."""

    @property
    def nodes(self) -> list[str]:
        """The names of the nodes: learners' first, learner 0's before all."""
        learners = [f"node-learner-{task}" for task in range(self.learners)]
        return learners + [f"node-actor-{task}" for task in range(self.actor_nodes)]

    def actors_on(self, task: int) -> int:
        """Returns how many actors the node `node-actor-TASK` has."""
        return len(range(task, self.actors, self.actor_nodes))


class Seen(NamedTuple):
    """What the Ray actor of a node reports."""

    host: str
    """The address of its Ray node."""
    problem: str
    """Why it cannot run its processes, or ''."""
    is_over: bool
    """Whether its processes have ended for good."""


class RayNode:
    """The Ray actor of a node. Others call its methods; a thread does the work.

    Args:
      run: the run.
      name: one of its nodes.
    """

    def __init__(self, run: Run, name: str) -> None:
        import ray

        self._run, self._name = run, name
        self._host = str(ray.util.get_node_ip_address())
        # Stored, because Ray may replace the code's folder by an equal one, and then cwd() fails.
        self._workdir = str(Path.cwd())
        self._problem = ""
        self._told_to_stop = self._is_over = False
        threading.Thread(target=self._work, daemon=True).start()

    def look(self) -> Seen:
        """Returns where the node is, and whether it is over."""
        return Seen(self._host, self._problem, self._is_over)

    def stop(self) -> None:
        """Stops the node's processes for good; a learner writes a checkpoint. Returns at once."""
        self._told_to_stop = True

    def _work(self) -> None:
        try:
            self._supervise()
        except Exception as error:
            traceback.print_exc()  # into Ray's log
            self._problem = str(error)
            while not self._told_to_stop:  # `status` says it until then
                time.sleep(_POLL_S)
        self._is_over = True
        if self._name == self._run.nodes[0]:
            self._end_run()

    def _supervise(self) -> None:
        """Runs the processes until they are over, and starts them again if a learner has moved."""
        learners = self._run.nodes[: self._run.learners]
        hosts: list[str] = []
        supervisor, thread = None, None
        while thread is None or thread.is_alive():
            seen = ask(self._run, learners, "look")
            found = [seen[name].host for name in learners if name in seen]
            if self._told_to_stop:
                if supervisor is None:
                    return
                supervisor.stop()
            elif len(found) == len(learners) and found != hosts:
                hosts = found
                if supervisor is not None and thread is not None:
                    supervisor.leave()
                    thread.join()
                supervisor = join.supervisor_of(self._flags(hosts), workdir=self._workdir)
                thread = threading.Thread(target=supervisor.run, daemon=True)
                thread.start()
            time.sleep(_POLL_S)

    def _flags(self, hosts: list[str]) -> Given:
        run = self._run
        _, job, task = self._name.split("-")
        return command_line.parse(run.flags, environment={}).replace(
            job_name=job,
            task=int(task),
            learner_hosts=",".join(host_port(host, run.port) for host in hosts),
            actor_hosts=",".join(run.nodes[run.learners :]),
            actors_per_node=run.actors_on(int(task)),
        )

    def _end_run(self) -> None:
        """Stops what still runs, the other learners first, and removes the run from Ray."""
        import ray

        run = self._run
        for others in (run.nodes[1 : run.learners], run.nodes[run.learners :]):
            if not self._told_to_stop:  # they end by themselves
                self._wait_until_over(others, _FAREWELL_S)
            ask(run, others, "stop")
            self._wait_until_over(others, STOP_TIMEOUT_S)
        ray.remote(_Remover).options(lifetime="detached", num_cpus=0).remote(run)

    def _wait_until_over(self, names: list[str], timeout_s: float) -> None:
        until_s = time.monotonic() + timeout_s
        while time.monotonic() < until_s:
            if all(seen.is_over for seen in ask(self._run, names, "look").values()):
                return
            time.sleep(_POLL_S)


def ask(run: Run, names: Iterable[str], method: str, answer_s: float = ANSWER_S) -> dict[str, Any]:
    """Calls a method of several nodes' Ray actors; returns {name: answer} of those that answer."""
    import ray
    from ray.exceptions import RayActorError

    calls = {}
    for name in names:
        with contextlib.suppress(ValueError):  # it has left Ray
            actor = ray.get_actor(name, namespace=run.namespace)
            calls[getattr(actor, method).remote()] = name
    answers = {}
    if calls:
        for call in ray.wait(list(calls), num_returns=len(calls), timeout=answer_s)[0]:
            with contextlib.suppress(RayActorError):  # its node was lost
                answers[calls[call]] = ray.get(call)
    return answers


def is_there(run: Run) -> bool:
    """Tells whether Ray has the run, with or without room for it."""
    import ray

    for _ in range(_LOOKUPS):
        with contextlib.suppress(ValueError):
            ray.get_actor(run.nodes[0], namespace=run.namespace)
            return True
        time.sleep(_POLL_S)
    return False


def create(run: Run, learner_takes: dict[str, float]) -> int:
    """Creates the placement group and the Ray actors of a run; waits for no room.

    Args:
      run: the run, in whose namespace this process is.
      learner_takes: {resource: amount} of a learner's node. Others take a CPU for each actor.

    Returns:
      How many nodes the cluster has.
    """
    import ray
    from ray.util.placement_group import placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    actors = [{"CPU": float(run.actors_on(task))} for task in range(run.actor_nodes)]
    bundles = [learner_takes] * run.learners + actors
    # Each on another Ray node, if there are enough.
    group = placement_group(bundles, strategy="SPREAD", name=run.namespace, lifetime="detached")
    for index, (name, takes) in enumerate(zip(run.nodes, bundles, strict=True)):
        options = {
            "name": name,
            "lifetime": "detached",
            "max_restarts": -1,
            "num_cpus": takes.get("CPU", 0),
            "num_gpus": takes.get("GPU", 0),
            "scheduling_strategy": PlacementGroupSchedulingStrategy(group, index),
        }
        ray.remote(RayNode).options(**options).remote(run, name)
    return sum(node["Alive"] for node in ray.nodes())


def remove(run: Run) -> None:
    """Removes a run from Ray, with all that still runs; this process is in its namespace."""
    import ray
    from ray.util.placement_group import get_placement_group, remove_placement_group

    with contextlib.suppress(ValueError):  # another one removes it
        for name in run.nodes:
            ray.kill(ray.get_actor(name, namespace=run.namespace), no_restart=True)
        remove_placement_group(get_placement_group(run.namespace))


class _Remover:
    """A Ray actor that removes a run. Those of the run cannot: they would end halfway."""

    def __init__(self, run: Run) -> None:
        remove(run)
        os._exit(0)
