"""What an agent of several levels is judged by: each level counts as much as any other."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from impala_tf.learner.best_checkpoint import BestCheckpoint
from impala_tf.logdir import Logdir
from impala_tf.monitoring.metrics import LEVEL_METRICS
from impala_tf.monitoring.recorder import RunRecorder
from impala_tf.monitoring.returns import Kind, scores
from impala_tf.monitoring.rows import LevelRows, evaluation_points, evaluation_status
from impala_tf.monitoring.writers import CsvWriter
from impala_tf.processes.learner_outputs import reached
from impala_tf.types import Episode, Progress
from tests.monitoring.test_recorder import Rows, stats

RANGE = {0: 10.0, 1: 1000.0}  # of the returns of two levels


def levels_of(folder: Path, normalized: bool = True) -> LevelRows:
    writer = CsvWriter(folder / "metrics-levels.csv", LEVEL_METRICS)
    return LevelRows(
        writer, ("a", "b"), lambda level, mean: mean / RANGE[level] if normalized else None
    )


def play(levels: LevelRows, games: Mapping[int, tuple[int, float]]) -> None:
    """Writes a row for games: {level: (how many, return)}."""
    writers: Any = {"rows": Rows()}
    one = RunRecorder(writers, {"queue_size": lambda: 0}, 10.0, level_rows=levels)
    for level, (count, score) in games.items():
        one.record_episodes([Episode(score, 5, level=level)] * count)
    one.record_update(stats(1.0), idle_s=0.0)
    one.write_row([one.interval()], Progress(100, 400, 1, 0, 0.1, 0.01))


@pytest.mark.parametrize(("normalized", "expected"), [(True, 0.35), (False, 102.5)])
def test_levels_with_short_games_count_as_much_as_others(
    tmp_path: Path, normalized: bool, expected: float
) -> None:
    levels = levels_of(tmp_path, normalized)
    play(levels, {0: (5000, 5.0), 1: (99, 500.0)})
    score = levels.score()
    assert score is not None and score.games == 99
    play(levels, {1: (201, 200.0)})
    score = levels.score()
    assert score is not None
    assert score == (pytest.approx(expected), 300)


def test_the_best_checkpoint_and_an_early_end_follow_the_mean_over_the_levels(
    tmp_path: Path,
) -> None:
    """A level's games may be so long that 100 never finish; if they do, only means of 100 count."""
    levels = levels_of(tmp_path)
    kept = []
    played = [(9, 1e4), (1, 600.0), (80, 100.0), (100, 0.0), (100, 900.0), (100, 100.0)]
    for number, (games, score) in enumerate(played):
        # Each is another process of the run, which has resumed.
        best = BestCheckpoint(Logdir(tmp_path), "mean_over_levels")
        (tmp_path / f"ckpt-{number}").mkdir()
        play(levels, {0: (100, 5.0), 1: (games, score)})
        found = levels.score()
        assert found is not None
        best.keep(tmp_path / f"ckpt-{number}", found)
        kept.append([path.name for path in tmp_path.glob("best/ckpt-*")])
        assert bool(reached(0.1, found, over_levels=True)) == (number >= 3)
    assert kept == [[], ["ckpt-1"], ["ckpt-1"], ["ckpt-3"], ["ckpt-4"], ["ckpt-4"]]


@pytest.mark.parametrize("kind", [Kind.NORMALIZED, Kind.LEVELS])
def test_the_files_of_a_run_hold_the_score(tmp_path: Path, kind: Kind) -> None:
    """A report, a sweep and a picture read there what a run was judged by while it trained."""
    levels = levels_of(tmp_path, kind is Kind.NORMALIZED)
    writers: Any = {"csv": CsvWriter(tmp_path / "metrics.csv")}
    one = RunRecorder(writers, {"queue_size": lambda: 0}, 10.0, level_rows=levels)
    expected = []
    for frames, scored in ((1, {0: 3.0}), (2, {1: 500.0}), (3, {}), (4, {0: 7.0, 1: 1 / 3})):
        one.record_episodes([Episode(mean, 5, level=level) for level, mean in scored.items()])
        one.record_update(stats(1.0), idle_s=0.0)
        one.write_row([one.interval()], Progress(frames, 4 * frames, 1, 0, 0.1, 0.01))
        if (score := levels.score()) is not None:
            expected.append(score.mean)
    found, points = scores(tmp_path / "metrics.csv")
    assert found is kind
    assert [mean for _, mean in points] == pytest.approx(expected)
    assert [row["environment_frames"] for row, _ in points] == ["8", "12", "16"]


def test_results_of_several_levels_have_a_curve_each_and_one_figure() -> None:
    """If each level has a normalised return; else the level with the largest returns decides."""
    played: dict[str, Any] = {"environment_frames": 100, "episodes": 2, "played": "other seeds"}
    rows = [{**played, "level_name": "A", "return_mean": 18.0}]
    rows.append({**played, "level_name": "B", "return_mean": 400.0})
    points = evaluation_points(rows)
    assert points == {"return_mean/A": 18.0, "return_mean/B": 400.0, "return_mean": 209.0}
    assert evaluation_status(rows)["return_mean"] == 209.0
    for row, normalized in zip(rows, (1.1, 13.9), strict=True):
        row["normalized_return_mean"] = normalized
    found = evaluation_status(rows)
    assert (found["return_mean"], found["normalized"], found["episodes"]) == (7.5, True, 4)
