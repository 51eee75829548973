"""Whole runs of pqn with its defaults."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.runs import Run, rows

pytestmark = [pytest.mark.end_to_end, pytest.mark.long]


def test_cartpole_is_learned_and_played(start: Callable[..., Run], tmp_path: Path) -> None:
    """A random agent has 20, one that always moves in one direction 10; 500 is the most.

    A run may end in a bad moment (sandbox/vectors.md), so its best one counts.
    """
    code, out, err = start(
        "--algorithm=pqn", "--level_name=CartPole-v1", "--total_environment_frames=300000",
        "--metrics_interval_s=1", "--stop_at_return=475", f"--logdir={tmp_path}",
    ).wait()  # fmt: skip
    assert code == 0, err + out
    found = [row for row in rows(tmp_path) if row["episode_return_mean"]]
    best = max(found, key=lambda row: float(row["episode_return_mean"]))
    assert float(best["episode_return_mean"]) > 450
    assert float(best["q_mean"]) > 50.0
    test = start(
        "--mode=test", f"--logdir={tmp_path}", "--checkpoint=best", "--test_policy=greedy",
        "--test_num_episodes=10",
    )  # fmt: skip
    code, out, err = test.wait()
    assert code == 0, err + out
    assert json.loads((tmp_path / "evaluation.json").read_text())["mean"] > 200


def test_catch_is_learned_from_pixels(start: Callable[..., Run], tmp_path: Path) -> None:
    """A random agent has -0.8."""
    code, out, err = start(
        "--algorithm=pqn", "--level_name=tests.helpers.worlds:Catch-v0", "--seed=3",
        "--total_environment_frames=50000", "--metrics_interval_s=1", "--stop_at_return=0.75",
        f"--logdir={tmp_path}",
    ).wait()  # fmt: skip
    assert code == 0, err + out
    assert float(rows(tmp_path)[-1]["episode_return_mean"]) > 0.6
