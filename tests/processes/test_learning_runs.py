"""Whole runs with the defaults learn levels of several kinds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.runs import Run, rows

pytestmark = pytest.mark.long


def final_return(logdir: Path, level_name: str, frames: int) -> float:
    flags = (f"--level_name={level_name}", f"--total_environment_frames={frames}")
    run = Run(*flags, "--metrics_interval_s=1", f"--logdir={logdir}")
    try:
        code, out, err = run.wait()
    finally:
        run.end()
    assert code == 0, err + out
    return float(rows(logdir)[-1]["episode_return_mean"])


def test_pendulum_with_continuous_actions(tmp_path: Path) -> None:
    """A random agent has about -1200."""
    assert final_return(tmp_path, "Pendulum-v1", 450_000) > -400


def test_a_room_of_minigrid_with_an_image_a_direction_and_a_text(tmp_path: Path) -> None:
    """A random agent has about 0.5 in this room; 0.955 is the shortest way."""
    assert final_return(tmp_path, "minigrid:MiniGrid-Empty-5x5-v0", 30_000) > 0.85


def test_acrobot(tmp_path: Path) -> None:
    """A random agent has -500."""
    assert final_return(tmp_path, "Acrobot-v1", 300_000) > -120
