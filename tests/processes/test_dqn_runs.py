"""Whole runs of dqn: they learn, keep their replay if they are told to, and can be evaluated."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.runs import Run, rows, status
from tests.helpers.waiting import wait_until

pytestmark = [pytest.mark.end_to_end, pytest.mark.long]

DQN = ("--algorithm=dqn", "--metrics_interval_s=1", "--seed=3")
ENDLESS = (
    *DQN,
    "--level_name=tests.helpers.worlds:CalmCartPole-v1",
    "--num_actors=1",
    "--total_environment_frames=1000000000",
)


def test_catch_is_learned_from_pixels(start: Callable[..., Run], tmp_path: Path) -> None:
    """With the defaults. A random agent has -0.8."""
    code, out, err = start(
        *DQN, "--level_name=tests.helpers.worlds:Catch-v0", "--total_environment_frames=50000",
        "--stop_at_return=0.8", f"--logdir={tmp_path}",
    ).wait()  # fmt: skip
    assert code == 0, err + out
    assert float(rows(tmp_path)[-1]["episode_return_mean"]) > 0.7
    log = (tmp_path / "processes" / "learner-0.log").read_text()
    assert "replay: up to 200,000 agent steps, 0.33 GB" in log


def test_a_trained_agent_plays(start: Callable[..., Run], tmp_path: Path) -> None:
    """A random agent has 20, one that always moves in one direction 10; 500 is the most."""
    code, out, err = start(
        *DQN, "--level_name=CartPole-v1", "--total_environment_frames=50000", f"--logdir={tmp_path}"
    ).wait()
    assert code == 0, err + out
    found = rows(tmp_path)[-1]
    assert float(found["replay_steps"]) > 40_000
    assert float(found["q_mean"]) > 20.0
    assert abs(int(found["learner_updates"]) - (50_000 - 1_000) / 8) < 200
    test = start(
        "--mode=test", f"--logdir={tmp_path}", "--test_policy=greedy", "--test_num_episodes=10"
    )
    code, out, err = test.wait()
    assert code == 0, err + out
    assert json.loads((tmp_path / "evaluation.json").read_text())["mean"] > 100


def test_a_killed_run_resumes_and_says_that_its_replay_refills(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    flags = (*ENDLESS, "--replay_capacity=50000", "--checkpoint_interval_s=1",
             f"--logdir={tmp_path}")  # fmt: skip

    def replay_steps() -> int:
        found = status(tmp_path).get("replay") or {}
        return int(found.get("steps", 0))

    first = start(*flags)
    wait_until(lambda: replay_steps() > 3_000 and len(rows(tmp_path)) > 2)
    first.end()
    again = start(*flags)
    log = tmp_path / "processes" / "learner-0.log"
    wait_until(lambda: "resuming from" in log.read_text())
    wait_until(lambda: status(tmp_path).get("state") == "training")
    assert "replay: refills; learning resumes in 1,000 agent steps" in log.read_text()
    again.process.send_signal(signal.SIGINT)
    code, out, err = again.wait()
    assert code == 0, err + out
