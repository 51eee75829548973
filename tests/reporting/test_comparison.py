"""Runs are averaged if they differ in their seeds only, and win if chance is no reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats

from impala_tf.reporting import comparison, runs, statistics
from impala_tf.reporting.comparison import Level
from tests.helpers.logdirs import Row, rows, write_run


def level_of(folder: Path) -> Level:
    (level,) = comparison.group(runs.find(str(folder)))
    return level


AGENT = "ShallowConvNetAgent"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        # What an algorithm brings along is not named: ppo changes a dozen flags that nobody gave.
        ([{"algorithm": "ppo", "seed": 2}, {"algorithm": "dqn"}, {"algorithm": "ppo"}],
         [(f"{AGENT}, ppo", [1, 2]), (f"{AGENT}, dqn", [1])]),
        # Nor the flags that follow from a given one, such as --learning_rate_end.
        ([{"learning_rate": 0.001}, {}],
         [(f"{AGENT}, learning_rate=0.001", [1]), (f"{AGENT}, learning_rate=0.00035", [1])]),
        # Each seed may start from a run of its own.
        ([{"seed": 1}, {"seed": 1, "start_from": "runs/1"}, {"seed": 2, "start_from": "runs/2"}],
         [(f"{AGENT}, start_from=nothing", [1]), (f"{AGENT}, start_from=a run", [1, 2])]),
        # These do not change how a run learns.
        ([{"seed": 1, "mirror": "/mnt/1", "metrics_interval_s": 5.0},
          {"seed": 2, "mirror": "/mnt/2", "stop_at_return": 18.0},
          {"seed": 3, "track": "wandb", "checkpoint_interval_s": 900.0}],
         [(AGENT, [1, 2, 3])]),
    ],
)  # fmt: skip
def test_settings_are_told_apart_by_the_given_flags_that_differ(
    tmp_path: Path, flags: list[dict[str, Any]], expected: list[tuple[str, list[int]]]
) -> None:
    for number, each in enumerate(flags):
        write_run(tmp_path / str(number), **each)
    settings = level_of(tmp_path).settings
    assert [(each.label, [run.seed for run in each.runs]) for each in settings] == expected


def test_a_command_repeats_its_run(tmp_path: Path) -> None:
    """It has what was given, and no port or other detail of a process."""
    flags: dict[str, Any] = {"terminal_on_life_loss": False, "learner_hosts": "here:4711"}
    run = runs.read(write_run(tmp_path, seed=3, job_name="learner", **flags))
    words = comparison.command(run).split()
    assert words[:2] == ["impala", "train"] and words[-1] == f"--logdir={tmp_path}"
    assert {"--level_name=PongNoFrameskip-v4", "--seed=3", "--no_terminal_on_life_loss"} <= {*words}
    assert not [word for word in words if word.startswith(("--learner_hosts", "--job_name"))]


def test_the_target_is_80_percent_of_the_way_to_the_best_setting(tmp_path: Path) -> None:
    """From the first returns (0, 20 and 10) to the mean of its seeds, not to its best seed."""
    write_run(tmp_path / "1", rows((0, 0, 0), (4000, 4, 100)), agent_name="ResNetAgent", seed=1)
    assert level_of(tmp_path).target is None  # it would be compared with its own end
    write_run(tmp_path / "2", rows((0, 0, 20), (4000, 8, 140)), agent_name="ResNetAgent", seed=2)
    write_run(tmp_path / "3", rows((0, 0, 10), (4000, 4, 40)), agent_name="ImpoolaAgent")
    assert level_of(tmp_path).target == 10 + 0.8 * (120 - 10)
    for number in (1, 2, 3):  # nothing was learned
        write_run(tmp_path / str(number), rows((0, 0, 5), (4000, 4, 3)), seed=number)
    assert level_of(tmp_path).target is None


def test_a_curve_is_the_mean_and_interval_of_the_seeds(tmp_path: Path) -> None:
    """Over minutes, the seed that has finished keeps its return."""
    write_run(tmp_path / "1", rows((0, 0, 0), (1000, 1, 50), (4000, 4, 100)), seed=1)
    write_run(tmp_path / "2", rows((0, 0, 20), (1000, 2, 20), (4000, 8, 140)), seed=2)
    (setting,) = level_of(tmp_path).settings
    curve = comparison.mean_curve(setting, "frames", "curve")
    assert curve is not None
    at_1000 = [float(np.interp(1000, curve.x, each)) for each in curve[1:4]]
    assert at_1000 == pytest.approx([35, 20, 50], abs=0.5)
    over_minutes = comparison.mean_curve(setting, "minutes", "curve")
    assert over_minutes is not None
    assert (over_minutes.x[-1], over_minutes.mean[-1], over_minutes.measured_until) == (8, 120, 4)


@pytest.mark.parametrize(
    ("state", "metrics", "end", "mean"),
    [
        # With --stop_at_return, the best seed ends first; a solved level would look unsolved.
        ("done", rows((0, 0, 0), (1000, 1, 50)), 4000, 75),
        ("stopped", rows((0, 0, 0), (1000, 1, 50)), 1000, 37.5),
        # One that has just begun does not hide the others.
        ("training", rows((10, 0.1, 0)), 4000, 100),
    ],
)
def test_only_a_seed_that_has_finished_keeps_its_return(
    tmp_path: Path, state: str, metrics: list[Row], end: float, mean: float
) -> None:
    path = write_run(tmp_path / "1", metrics, seed=1)
    (path / "status.json").write_text(json.dumps({"state": state}))
    write_run(tmp_path / "2", rows((0, 0, 0), (4000, 4, 100)), seed=2)
    (setting,) = level_of(tmp_path).settings
    curve = comparison.mean_curve(setting, "frames", "curve")
    assert curve is not None
    assert (curve.x[-1], curve.mean[-1]) == (end, pytest.approx(mean))


def test_the_p_value_is_scipys_and_defined_without_any_spread() -> None:
    """All seeds of CartPole end with 500."""
    samples = [3.0, 9.5, 4.0, 7.0, 5.5], [1.0, 6.0, 2.0, 4.5]
    expected = scipy.stats.ttest_ind(*samples, equal_var=False).pvalue
    assert statistics.welch_p_value(*samples) == pytest.approx(expected)
    assert statistics.welch_p_value([500.0] * 3, [500.0] * 3) == 1
    assert statistics.welch_p_value([500.0] * 3, [9.0] * 3) == 0


def test_only_what_chance_cannot_explain_is_no_leader() -> None:
    clearly = [[20.0, 20.5, 19.8], [-20.0, -19.0, -20.4], [19.9, 20.3, 20.2]]
    assert statistics.leaders(clearly) == [2, 0]
    assert statistics.leaders(clearly[:2]) == [0]
    assert statistics.leaders([[1.0, 1.1], [9.0, 9.1]]) == [1, 0]  # two seeds name no winner


def test_chance_alone_seldom_names_a_winner() -> None:
    """Three equal settings with three seeds each, drawn 400 times: 5 % at most would be right."""
    draws = np.random.default_rng(1).normal(size=(400, 3, 3))
    assert sum(len(statistics.leaders(draw.tolist())) == 1 for draw in draws) <= 0.05 * 400
