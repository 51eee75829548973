"""Whole runs with the defaults learn levels of several kinds."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.runs import Run, rows


def train(start: Callable[..., Run], logdir: Path, *flags: str) -> str:
    """Returns what the run prints."""
    code, out, err = start(*flags, "--metrics_interval_s=1", f"--logdir={logdir}").wait()
    assert code == 0, err + out
    return out


def play_games(start: Callable[..., Run], logdir: Path, *flags: str) -> dict[str, Any]:
    """Plays with the run's agent."""
    code, out, err = start("--mode=test", f"--logdir={logdir}", *flags).wait()
    assert code == 0, err + out
    return dict(json.loads((logdir / "evaluation.json").read_text()))


@pytest.mark.parametrize(
    ("algorithm", "level", "frames", "enough"),
    [
        ("appo", "InvertedPendulum-v5", 150_000, 100),  # a random agent has 6
        ("appo", "minigrid:MiniGrid-Empty-5x5-v0", 30_000, 0.9),  # 0.5; 0.955 is the shortest way
        ("impala", "tests.helpers.worlds:Catch-v0", 100_000, 0.5),  # -0.8
        ("ppo", "tests.helpers.worlds:Catch-v0", 100_000, 0.5),
        ("pqn", "tests.helpers.worlds:Catch-v0", 50_000, 0.75),
    ],
)
@pytest.mark.always
def test_a_run_with_the_defaults_learns(
    start: Callable[..., Run],
    tmp_path: Path,
    algorithm: str,
    level: str,
    frames: int,
    enough: float,
) -> None:
    said = train(
        start,
        tmp_path,
        f"--algorithm={algorithm}",
        f"--level_name={level}",
        "--seed=3",
        f"--total_environment_frames={frames}",
        f"--stop_at_return={enough}",
    )
    assert f"--stop_at_return={enough} is reached" in said


@pytest.mark.always
def test_an_agent_with_q_values_learns_and_plays(start: Callable[..., Run], tmp_path: Path) -> None:
    """A random agent has 5, and the best one 10; a masked action raises."""
    said = train(
        start,
        tmp_path,
        "--algorithm=dqn",
        "--level_name=tests.helpers.worlds:LockedInfo-v0",
        "--seed=3",
        "--total_environment_frames=40000",
        "--stop_at_return=9",
    )
    assert "--stop_at_return=9 is reached" in said
    play = ("--checkpoint=best", "--test_policy=greedy", "--test_num_episodes=10")
    assert play_games(start, tmp_path, *play, "--trust_level_module")["mean"] > 8


@pytest.mark.always
def test_an_evaluation_on_procgen_also_plays_unseen_levels(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    train(
        start,
        tmp_path,
        "--level_name=procgen:bigfish",
        "--num_levels=20",
        "--start_level=5",
        "--num_actors=1",
        "--agent_name=ShallowConvNetAgent",
        "--total_environment_frames=3000",
    )
    result = play_games(start, tmp_path, "--test_num_episodes=2")
    unseen = result["unseen"]
    assert unseen["level_name"] == "levels from 25"
    assert result["num_episodes"] == unseen["num_episodes"] == 2
    assert "normalized_mean" in result and "normalized_mean" in unseen


def test_one_agent_learns_two_levels_and_is_evaluated_on_each(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    """The games of the levels add up to those of the run."""
    names = "CartPole-v1,tests.helpers.worlds:ShortCartPole-v1"
    train(
        start,
        tmp_path,
        f"--level_name={names}",
        "--total_environment_frames=300000",
        "--num_actors=1",
        "--stop_at_return=140",
    )
    with (tmp_path / "metrics-levels.csv").open() as file:
        levels = list(csv.DictReader(file))[-2:]
    assert [level["level_name"] for level in levels] == names.split(",")
    total = rows(tmp_path)[-1]
    assert sum(int(level["episodes"]) for level in levels) == int(total["episodes"])
    first, second = (float(level["episode_return_mean"]) for level in levels)
    assert first > 120 and 60 < second <= 100
    play = ("--test_num_episodes=4", "--video", "--trust_level_module")
    found = play_games(start, tmp_path, *play)["levels"]
    assert [level["level_name"] for level in found] == names.split(",")
    assert found[0]["mean"] > 120 and 60 < found[1]["mean"] <= 100
    films = {path.stem: path.stat().st_size for path in tmp_path.glob("*.mp4")}
    assert len(films) == 2 and all(name.startswith("evaluation-") for name in films), films
    assert min(films.values()) > 1000
