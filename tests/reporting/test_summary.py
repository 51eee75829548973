"""The figures of a report, against hand-computed ones."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from impala_tf.reporting import numbers, runs, settings, summary
from impala_tf.reporting.settings import Level
from impala_tf.reporting.statistics import Interval
from impala_tf.reporting.summary import Exhibit, Spread, Target
from tests.helpers.logdirs import rows, write_run


@pytest.fixture
def level(tmp_path: Path) -> Level:
    """Two agents; the first with two seeds, of which the slower one is better."""
    first = rows((0, 0, 0), (1000, 1, 50), (4000, 4, 100))
    second = rows((0, 0, 20), (1000, 2, 20), (4000, 8, 140))
    write_run(tmp_path / "a" / "1", first, agent_name="ResNetAgent", seed=1)
    write_run(tmp_path / "a" / "2", second, agent_name="ResNetAgent", seed=2)
    write_run(tmp_path / "b", rows((0, 0, 10), (4000, 4, 40)), agent_name="ImpoolaAgent")
    (found,) = settings.group(runs.find(str(tmp_path)))
    return found


def test_means_and_their_intervals_over_seeds(level: Level) -> None:
    target = Target(50.0, "")
    resnet, impoola = (summary.summarize(setting, target, Exhibit()) for setting in level.settings)
    assert resnet.final_return == Spread(120.0, Interval(100.0, 140.0), 2)
    assert resnet.frames_to_target == Spread(2500.0, Interval(1000.0, 4000.0), 2)
    assert resnet.minutes_to_target == Spread(4.5, Interval(1.0, 8.0), 2)
    assert resnet.final_iqm is None
    assert (resnet.learner_memory_mb, resnet.actor_memory_mb) == (708, 508)  # the largest
    assert impoola.final_return == Spread(40.0, None, 1)
    assert impoola.frames_to_target is None


def test_a_return_that_some_seeds_reach_counts_those(level: Level) -> None:
    found = summary.summarize(level.settings[0], Target(120.0, ""), Exhibit())
    assert found.frames_to_target == Spread(4000.0, None, 1)


def test_the_usual_target_is_80_percent_of_the_way_to_the_best_agent(level: Level) -> None:
    """From the first returns (0, 20 and 10) to the mean of its seeds, not to its best seed."""
    found = summary.target_of(level, None)
    assert found is not None
    assert found.mean_return == 10 + 0.8 * (120 - 10)
    assert found.reason == "80 % of the way from the first mean return, 10.0, to the best final one"
    assert summary.target_of(level, 33.0) == Target(33.0, "--report_return")


@pytest.mark.parametrize(
    ("first", "best", "target", "shown"),
    [
        (0.0, 0.0069, 0.0055, "0.0055"),  # and not 0.01, which nobody reached
        (0.0, 0.0049, 0.00392, "0.00392"),  # and not 0.00, where all began
        (1000.0, 1000.5, 1000.4, "1,000.4"),
        (-20.0, 20.0, 12.0, "12.0"),
    ],
)
def test_a_target_lies_between_the_first_and_the_best_return(
    tmp_path: Path, first: float, best: float, target: float, shown: str
) -> None:
    """Rounded too far, the setting that defines it would not reach it, or at its first row."""
    for seed in (1, 2):
        write_run(tmp_path / str(seed), rows((0, 0, first), (4000, 4, best)), seed=seed)
    (level,) = settings.group(runs.find(str(tmp_path)))
    found = summary.summarize_level(level, {level.settings[0]: Exhibit()}, None)
    assert found.target is not None
    assert found.target.mean_return == pytest.approx(target)
    assert numbers.target(found.target.mean_return) == shown
    assert found.rows[0].frames_to_target == Spread(4000, Interval(4000, 4000), 2)


def test_there_is_no_target_if_nothing_was_learned(tmp_path: Path) -> None:
    for seed in (1, 2):
        write_run(tmp_path / str(seed), rows((0, 0, 5), (4000, 4, 3)), seed=seed)
    (level,) = settings.group(runs.find(str(tmp_path)))
    assert summary.target_of(level, None) is None


def test_a_single_run_has_no_target_but_a_given_one(tmp_path: Path) -> None:
    """It would be compared with its own end."""
    (level,) = settings.group(runs.find(str(write_run(tmp_path))))
    assert summary.target_of(level, None) is None
    assert summary.target_of(level, 3.0) == Target(3.0, "--report_return")


def test_a_curve_over_frames_is_the_mean_and_interval_of_the_seeds(level: Level) -> None:
    curve = summary.mean_curve(level.settings[0], "frames")
    assert curve is not None
    at_1000 = [float(np.interp(1000, curve.x, each)) for each in curve[1:4]]
    assert at_1000 == pytest.approx([35, 20, 50], abs=0.5)
    assert (curve.x[0], curve.x[-1]) == (0, 4000)
    assert (curve.mean[-1], curve.low[-1], curve.high[-1]) == (120, 100, 140)


def test_over_minutes_a_finished_seed_keeps_its_return(level: Level) -> None:
    """The slower seed needs 8 minutes: the curve goes on, but says what is not measured."""
    curve = summary.mean_curve(level.settings[0], "minutes")
    assert curve is not None
    assert (curve.x[-1], curve.mean[-1], curve.low[-1]) == (8, 120, 100)
    assert curve.measured_until == 4


SHORT, LONG = rows((0, 0, 0), (1000, 1, 50)), rows((0, 0, 0), (4000, 4, 100))


@pytest.mark.parametrize(
    ("first_state", "last"),
    [
        ("done", {"frames": (4000, 75), "minutes": (4, 75)}),
        # What it will do, or would have done, is not known.
        ("training", {"frames": (1000, 37.5), "minutes": (1, 37.5)}),
        ("stopped", {"frames": (1000, 37.5), "minutes": (1, 37.5)}),
    ],
)
def test_only_a_seed_that_has_finished_keeps_its_return(
    tmp_path: Path, first_state: str, last: dict[str, tuple[float, float]]
) -> None:
    """With --stop_at_return, the best seed ends first; a solved level would look unsolved."""
    path = write_run(tmp_path / "1", SHORT, seed=1, stop_at_return=50.0)
    (path / "status.json").write_text(json.dumps({"state": first_state}))
    write_run(tmp_path / "2", LONG, seed=2, stop_at_return=50.0)
    (level,) = settings.group(runs.find(str(tmp_path)))
    for axis, (end, mean) in last.items():
        curve = summary.mean_curve(level.settings[0], axis)
        assert curve is not None
        assert (curve.x[-1], curve.mean[-1]) == (end, pytest.approx(mean))
        assert curve.measured_until == (1000 if axis == "frames" else 1)


def test_a_seed_that_ended_with_its_first_row_counts(tmp_path: Path) -> None:
    """The curve would end at another mean than the table beside it."""
    for seed, points in enumerate(([(4000, 4, 400)], [(0, 0, 0), (4000, 4, 60)]), start=1):
        write_run(tmp_path / str(seed), rows(*points), seed=seed)
    (level,) = settings.group(runs.find(str(tmp_path)))
    curve = summary.mean_curve(level.settings[0], "frames")
    assert curve is not None
    assert (curve.mean[0], curve.mean[-1]) == (200, 230)


def test_a_seed_that_has_just_begun_does_not_hide_the_curve_of_others(tmp_path: Path) -> None:
    """A comparison may be looked at while it trains."""
    write_run(tmp_path / "1", LONG, seed=1)
    write_run(tmp_path / "2", rows((10, 0.1, 0)), seed=2)
    (level,) = settings.group(runs.find(str(tmp_path)))
    curve = summary.mean_curve(level.settings[0], "frames")
    assert curve is not None and (curve.x[-1], curve.mean[-1]) == (4000, 100)


def test_a_seed_whose_evaluations_failed_does_not_keep_the_last_one(tmp_path: Path) -> None:
    """It has trained on since, so that is not what it ended with."""
    header = "wall_time_s,environment_frames,level_name,played,return_mean"
    for seed, frames in ((1, (1000, 2000)), (2, (1000, 2000, 4000))):
        path = write_run(tmp_path / str(seed), seed=seed, eval_every=1000)
        lines = [f"60,{count},a,other seeds,5" for count in frames]
        (path / "evaluation.csv").write_text("\n".join([header, *lines]) + "\n")
    (level,) = settings.group(runs.find(str(tmp_path)))
    curve = summary.mean_curve(level.settings[0], "frames", summary.evaluation_curve)
    assert curve is not None and curve.x[-1] == 2000


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (numbers.count(950), "950"),
        (numbers.count(45_123), "45.1 k"),
        (numbers.count(1_687_206), "1.69 M"),
        (numbers.count(999_600), "1.00 M"),
        (numbers.tick(2_000_000), "2 M"),
        (numbers.tick(0), "0"),
        (numbers.plain(2.5), "2.5"),
        (numbers.plain(2_500), "2,500"),
        (numbers.plain(10_000), "10,000"),
        (numbers.plain(-12_345.6), "−12,346"),
        (
            numbers.count_spread(Spread(2_680_000, Interval(950_000, 3_171_000), 2)),
            "2.68 M (0.95 to 3.17 M)",
        ),
        (numbers.mean_return(-20.62), "−20.6"),
        (numbers.mean_return(-0.0049), "−0.0049"),
        (numbers.mean_return(-1e-12), "0.00"),
        (numbers.mean_return(0.5), "0.50"),
        (numbers.mean_return(12_345.6), "12,346"),
        (numbers.return_spread(Spread(1.0, Interval(-20.04, 21), 3)), "1.00 (−20.04 to 21.00)"),
        (numbers.return_spread(Spread(0.5, None, 1)), "0.50"),
        (
            numbers.return_spread(Spread(0.0059, Interval(0.0049, 0.0069), 2)),
            "0.0059 (0.0049 to 0.0069)",
        ),
        (numbers.target(18.0), "18.0"),
        (numbers.target(0.125), "0.125"),
        (numbers.target(-1e4), "−10,000"),
        (numbers.return_spread(None), "–"),
    ],
)
def test_figures_are_short_and_have_one_unit(text: str, shown: str) -> None:
    assert text == shown
