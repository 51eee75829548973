"""Whole runs in which processes wait for each other, or share the work in another way."""

from __future__ import annotations

import os
import signal
import statistics
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.runs import Run, rows, status
from tests.helpers.waiting import wait_until


@pytest.mark.always
def test_a_run_learns_from_gradients_that_its_actors_compute(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    """Random play ends after 22 steps on average."""
    code, out, err = start(
        "--level_name=CartPole-v1",
        "--algorithm=a3c",
        "--total_environment_frames=150000",
        "--stop_at_return=50",
        "--metrics_interval_s=1",
        f"--logdir={tmp_path}",
    ).wait()
    assert code == 0, err + out
    found = rows(tmp_path)
    assert "--stop_at_return=50 is reached" in out

    def mean(name: str) -> float:
        return statistics.mean(float(row[name]) for row in found)

    assert mean("rho_clip_fraction") < 0.6  # pi is mu: a ratio is above 1 by rounding only
    assert 0 < mean("policy_lag_mean") < 20


def test_actors_that_step_together_get_over_one_that_was_killed(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    """An unroll that waited for the last update has no policy lag."""
    run = start(
        "--level_name=CartPole-v1",
        "--algorithm=impala",
        "--num_actors=2",
        "--envs_per_actor=8",
        "--updates_per_batch=1",
        "--metrics_interval_s=1",
        "--synchronization=step",
        "--inference=learner",
        "--total_environment_frames=1000000000",
        f"--logdir={tmp_path}",
    )
    wait_until(lambda: len(rows(tmp_path)) > 1)
    os.kill(run.pid_of("--job_name=actor"), signal.SIGKILL)
    before = status(tmp_path)["agent_steps"]
    wait_until(lambda: status(tmp_path)["agent_steps"] > before + 3_000)
    run.process.send_signal(signal.SIGINT)
    code, out, err = run.wait()
    assert code == 0, err + out
    lags = [float(row["policy_lag_max"]) for row in rows(tmp_path) if row["policy_lag_max"]]
    assert max(lags) == 0
