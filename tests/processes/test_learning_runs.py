"""Whole runs with the defaults learn levels of several kinds."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.runs import Run, rows

pytestmark = pytest.mark.long


def final_return(
    start: Callable[..., Run], logdir: Path, level_name: str, frames: int, enough: float
) -> float:
    flags = (
        f"--level_name={level_name}",
        f"--total_environment_frames={frames}",
        f"--stop_at_return={enough}",
    )
    code, out, err = start(*flags, "--metrics_interval_s=1", f"--logdir={logdir}").wait()
    assert code == 0, err + out
    return float(rows(logdir)[-1]["episode_return_mean"])


def test_pendulum_with_continuous_actions(start: Callable[..., Run], tmp_path: Path) -> None:
    """A random agent has about -1200."""
    assert final_return(start, tmp_path, "Pendulum-v1", 450_000, -350) > -400


def test_a_room_of_minigrid_with_an_image_a_direction_and_a_text(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    """A random agent has about 0.5 in this room; 0.955 is the shortest way."""
    assert final_return(start, tmp_path, "minigrid:MiniGrid-Empty-5x5-v0", 30_000, 0.9) > 0.85


def test_acrobot(start: Callable[..., Run], tmp_path: Path) -> None:
    """A random agent has -500."""
    assert final_return(start, tmp_path, "Acrobot-v1", 300_000, -110) > -120


def test_one_agent_learns_two_levels_and_is_evaluated_on_each(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    """The games of the levels add up to those of the run."""
    names = "CartPole-v1,tests.helpers.worlds:ShortCartPole-v1"
    code, out, err = start(
        f"--level_name={names}",
        "--total_environment_frames=300000",
        "--num_actors=1",
        "--metrics_interval_s=1",
        f"--logdir={tmp_path}",
    ).wait()
    assert code == 0, err + out
    with (tmp_path / "metrics-levels.csv").open() as file:
        levels = list(csv.DictReader(file))[-2:]
    assert [level["level_name"] for level in levels] == names.split(",")
    total = rows(tmp_path)[-1]
    assert sum(int(level["episodes"]) for level in levels) == int(total["episodes"])
    first, second = (float(level["episode_return_mean"]) for level in levels)
    assert first > 200 and 80 < second <= 100
    code, out, err = start(
        "--mode=test", f"--logdir={tmp_path}", "--test_num_episodes=4", "--video",
        "--trust_level_module",
    ).wait()  # fmt: skip
    assert code == 0, err + out
    found = json.loads((tmp_path / "evaluation.json").read_text())["levels"]
    assert [level["level_name"] for level in found] == names.split(",")
    assert found[0]["mean"] > 150 and 80 < found[1]["mean"] <= 100
    films = {path.stem: path.stat().st_size for path in tmp_path.glob("*.mp4")}
    assert len(films) == 2 and all(name.startswith("evaluation-") for name in films), films
    assert min(films.values()) > 1000
