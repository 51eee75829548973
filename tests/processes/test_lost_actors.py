"""Actors are killed: the others go on, and those that are started again take part."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.ports import free_port
from tests.helpers.runs import Run, status
from tests.helpers.waiting import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]
ACTORS = ["actor-0", "actor-1", "actor-2", "actor-3"]


def test_the_others_go_on_while_actors_are_away(start: Callable[..., Run], tmp_path: Path) -> None:
    flags = (
        "--level_name=tests.helpers.worlds:PacedCartPole-v1",
        f"--logdir={tmp_path}",
        f"--learner_hosts=127.0.0.1:{free_port()}",
        "--total_environment_frames=1000000000",
        "--envs_per_actor=4",
        "--unroll_length=10",
        "--batch_size=4",
    )

    def start_actor(task: int) -> Run:
        return start(*flags, "--job_name=actor", f"--task={task}")

    def acting() -> list[str]:
        return sorted(
            actor["name"]
            for actor in status(tmp_path).get("actors", [])
            if actor["present"] and actor["agent_steps_per_s"] > 0
        )

    learner = start(*flags, "--job_name=learner")
    learner.wait_until((tmp_path / "credentials" / "actor.key").exists)
    actors = [start_actor(task) for task in range(len(ACTORS))]
    wait_until(lambda: acting() == ACTORS, poll_s=0.2)
    for actor in actors[:2]:
        os.kill(actor.process.pid, signal.SIGKILL)
        actor.wait()
    wait_until(lambda: acting() == ACTORS[2:], poll_s=0.2)
    steps = status(tmp_path)["agent_steps"]
    wait_until(lambda: status(tmp_path)["agent_steps"] > steps + 400, poll_s=0.2)
    assert not {*ACTORS[:2]} & {*acting()}
    for task in range(2):
        start_actor(task)
    wait_until(lambda: acting() == ACTORS, poll_s=0.2)
