"""A run on Ray: a value that says which processes it has, and how all of them end."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import NamedTuple

from impala_tf.frontend.engines.ray_cluster import Cluster
from impala_tf.machine.supervision import STOP_TIMEOUT_S, ProcessState

FAREWELL_S = 10.0
"""How long actors may take to be told by a learner that the run is over, and to exit."""
_POLL_S = 0.5


class Run(NamedTuple):
    """A run, as all of its processes know it."""

    namespace: str
    """Of its Ray actors, which are named as its processes: learner-0, actor-2."""
    logdir: str
    """Absolute, on every node."""
    credentials: str
    """Folder of the certificates on learner 0's node; absolute."""
    learners: int
    actors: int
    flags: tuple[str, ...]
    """Of every process."""
    port: int | None
    """Of learner 0. None: free ones."""
    max_restarts: int
    """Of a learner in an hour."""
    max_hours: float | None
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
    """Address of its node."""
    status: str
    """What learner 0 has written to status.json; '' if nothing."""
    is_over: bool
    """Whether the process has ended for good, and its state is in the logdir if that works."""


def end(cluster: Cluster, run: Run, patience_s: float, itself: str = "") -> None:
    """Stops what still runs, learners first, and removes all of the run from Ray.

    Args:
      cluster: connected.
      run: the run.
      patience_s: how long actors may take to end by themselves.
      itself: the process whose Ray actor calls this, if one does; it must be over. This does not
        return then.
    """
    others = [name for name in run.names if name != itself]
    there = cluster.ask(others, "look")
    cluster.remove(name for name in others if name not in there)
    learners = [name for name in run.learner_names if name in there]
    # Learners are a group: they end together, or those that are left are told to.
    _wait_until_over(cluster, learners, FAREWELL_S if itself else 0)
    cluster.ask(learners, "stop")
    _wait_until_over(cluster, learners, STOP_TIMEOUT_S)
    _wait_until_over(cluster, there, patience_s)
    cluster.ask(there, "stop")
    _wait_until_over(cluster, there, STOP_TIMEOUT_S)
    cluster.remove(others)
    if itself:
        cluster.leave(itself)
    else:
        cluster.release()


def _wait_until_over(cluster: Cluster, names: Iterable[str], timeout_s: float) -> None:
    """Waits for those of the processes that answer; the nodes of the others are lost."""
    names = list(names)
    until_s = time.monotonic() + timeout_s
    while names and time.monotonic() < until_s:
        seen: dict[str, Seen] = cluster.ask(names, "look")
        names = [name for name in names if name in seen and not seen[name].is_over]
        if names:
            time.sleep(_POLL_S)
