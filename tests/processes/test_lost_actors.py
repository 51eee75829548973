"""Actors are killed and paused: the others keep their rate, and all do when they return."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.ports import free_port
from tests.helpers.runs import Run, status
from tests.helpers.waiting import wait_until

pytestmark = [pytest.mark.rates, pytest.mark.timeout(600)]
ACTORS = 8
ROUNDS = int(os.environ.get("IMPALA_TF_ROUNDS", "1"))
"""How often three of the actors are killed; ten rounds take ten minutes."""


class Cluster:
    """A learner and eight actors, started by hand, whose steps take 100 ms: sleep, not work."""

    def __init__(self, start: Callable[..., Run], logdir: Path) -> None:
        self._start = start
        self._logdir = logdir
        self._flags = (
            "--level_name=tests.helpers.worlds:PacedCartPole-v1", f"--logdir={logdir}",
            f"--learner_hosts=127.0.0.1:{free_port()}",
            "--total_environment_frames=1000000000", "--envs_per_actor=4",
            "--unroll_length=10", "--batch_size=8", "--metrics_interval_s=1",
        )  # fmt: skip
        self.learner = start(*self._flags, "--job_name=learner")
        self.learner.wait_until((logdir / "credentials" / "actor.key").exists)
        self.actors = [self.actor(task) for task in range(ACTORS)]

    def actor(self, task: int) -> Run:
        return self._start(*self._flags, "--job_name=actor", f"--task={task}")

    def steps(self) -> int:
        return int(status(self._logdir)["agent_steps"])

    def rate(self, seconds: float) -> float:
        """Returns agent steps a second; fails if there is no update for 5 s meanwhile."""
        began, before = time.monotonic(), self.steps()
        updated, steps = began, before
        while (now := time.monotonic()) < began + seconds:
            time.sleep(0.2)
            if self.steps() > steps:
                updated, steps = now, self.steps()
            assert now - updated < 5, "no update for 5 s"
        return (self.steps() - before) / (time.monotonic() - began)

    def contributing(self) -> int:
        seen = status(self._logdir).get("actors", [])
        return sum(actor["agent_steps_per_s"] > 0 for actor in seen)


def test_the_rate_falls_with_the_actors_and_returns_with_them(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    cluster = Cluster(start, tmp_path)
    wait_until(lambda: cluster.contributing() == ACTORS)
    time.sleep(5)
    everybody = cluster.rate(20)  # a batch more or less is 80 steps
    for _ in range(ROUNDS):
        for task in range(3):
            os.kill(cluster.actors[task].process.pid, signal.SIGKILL)
            cluster.actors[task].wait()
        time.sleep(2)  # unrolls of the dead are still in the queue, and status is a second old
        assert cluster.rate(10) == pytest.approx(everybody * 5 / 8, rel=0.15)
        for task in range(3):
            cluster.actors[task] = cluster.actor(task)
        began = time.monotonic()
        while cluster.rate(5) < 0.95 * everybody:
            assert time.monotonic() < began + 60
