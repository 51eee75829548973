"""A run on Ray: a value with its processes, and the function that ends them."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import NamedTuple

from impala_tf.frontend.engines.ray_cluster import Cluster
from impala_tf.machine.supervision import STOP_TIMEOUT_S, ProcessState

FAREWELL_S = 10.0
"""How long actors may take to hear from a learner that the run is over, and to exit."""
_POLL_S = 0.5


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
    """The flags of every process, and --max_hours and --max_restarts."""
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
