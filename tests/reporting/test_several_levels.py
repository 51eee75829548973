"""Agents of several levels are judged by the mean over the levels, not by that over all games."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest

from impala_tf.monitoring.returns import Kind
from impala_tf.reporting import curves, documents, facts, runs, settings, table
from impala_tf.reporting.runs import Run
from impala_tf.reporting.summary import Exhibit, LevelSummary, comparisons, summarize_level
from tests.helpers.logdirs import level_rows, rows, write_levels, write_run

LEVELS = "PongNoFrameskip-v4,BreakoutNoFrameskip-v4"
OVER_LEVELS = "mean over the levels of their mean returns"
# appo is better on both levels, but its games of the first one last longer: of the last 100 games
# of both levels, 9 are of that level with appo, and 50 with ppo.
GAMES = {"appo": (18.0, (100.0, 10.0)), "ppo": (49.5, (90.0, 9.0))}


def write_seed(
    folder: Path, algorithm: str, seed: int, has_levels: bool = True, **levels: Any
) -> None:
    pooled, means = GAMES[algorithm]
    path = write_run(
        folder / f"{algorithm}-{seed}", rows((0, 0, 1), (4000, 4, pooled + seed / 10)),
        algorithm=algorithm, level_name=LEVELS, seed=seed,
    )  # fmt: skip
    if has_levels:
        after = [mean + seed / 10 for mean in means]
        write_levels(
            path, [*level_rows(0, 0, 1, 1, **levels), *level_rows(4000, 4, *after, **levels)]
        )


def summarized(folder: Path) -> LevelSummary:
    (level,) = settings.group(runs.find(str(folder)))
    return summarize_level(level, {each: Exhibit() for each in level.settings}, None)


def text_of(summary: LevelSummary) -> str:
    return documents.markdown([summary], {}, "", "")


def csv_of(summary: LevelSummary) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(table.as_csv([summary]))))


def read(folder: Path, metrics: list[Any], *levels: dict[str, Any]) -> Run:
    path = write_run(folder, metrics, level_name=LEVELS)
    write_levels(path, levels)
    return runs.read(path)


def test_the_winner_is_what_is_better_on_the_levels(tmp_path: Path) -> None:
    for algorithm in GAMES:
        for seed in (1, 2, 3):
            write_seed(tmp_path, algorithm, seed)
    summary = summarized(tmp_path)
    winner = "ShallowConvNetAgent, appo ended with the highest mean return: 55.2"
    assert facts.headline(summary).startswith(winner)
    top = table.best(summary)
    assert top is not None and top.setting.label == "ShallowConvNetAgent, appo"
    assert "ShallowConvNetAgent, appo over ShallowConvNetAgent, ppo: " in text_of(summary)
    assert {row["final_return"] for row in csv_of(summary)} == {
        "55.1", "55.2", "55.3", "49.6", "49.7", "49.8",
    }  # fmt: skip


def test_a_report_says_what_its_returns_are(tmp_path: Path) -> None:
    write_seed(tmp_path / "raw", "appo", 1)
    raw = summarized(tmp_path / "raw")
    assert all(f">{OVER_LEVELS}</text>" in chart for chart in curves.charts(raw))
    assert "Return: mean over the levels of their unclipped means over the last 100" in text_of(raw)
    assert [row["returns"] for row in csv_of(raw)] == ["mean_over_levels"]
    write_seed(tmp_path / "human", "appo", 1, normalized=(0.4, 0.6))
    human = summarized(tmp_path / "human")
    assert human.rows[0].final_return is not None
    assert human.rows[0].final_return.mean == pytest.approx(0.5)
    label = "mean over the levels of their normalised returns"
    assert all(f">{label}</text>" in chart for chart in curves.charts(human))
    assert f"Return: {label}" in documents.html([human], "", "")
    assert [row["returns"] for row in csv_of(human)] == ["normalized_mean_over_levels"]


def test_a_report_of_one_level_is_as_before(tmp_path: Path) -> None:
    summary = summarized(write_run(tmp_path))
    assert ">mean return of the last 100 games</text>" in curves.charts(summary)[0]
    assert "Return: unclipped, mean over the last 100 games of training. In" in text_of(summary)
    assert "returns" not in csv_of(summary)[0]


def test_runs_without_rows_of_levels_are_shown_and_not_compared(tmp_path: Path) -> None:
    """An older version may not have written them. What there is would name ppo, which is worse."""
    for algorithm in GAMES:
        for seed in (1, 2, 3):
            write_seed(tmp_path, algorithm, seed, has_levels=False)
    summary, text = summarized(tmp_path), text_of(summarized(tmp_path))
    assert {row["final_return"] for row in csv_of(summary)} >= {"18.1", "49.6"}
    assert "No winner is named: the returns are means over the games of all levels toge" in text
    assert table.best(summary) is None and comparisons(summary) == []
    assert "The games of all levels count together, so levels with short games count most" in text
    assert ">mean return of the last 100 games of all levels</text>" in curves.charts(summary)[0]


def test_runs_are_compared_by_what_all_of_them_have(tmp_path: Path) -> None:
    """The mean over the levels of one seed and that over the games of another have no mean."""
    write_seed(tmp_path, "appo", 1)
    write_seed(tmp_path, "appo", 2, has_levels=False)
    summary = summarized(tmp_path)
    assert [run.final_return for run in summary.level.runs] == [18.1, 18.2]
    assert f"These runs do not have it: {tmp_path / 'appo-2'}." in text_of(summary)
    write_seed(tmp_path, "appo", 2, normalized=(0.4, 0.6))
    level = summarized(tmp_path).level
    assert [run.final_return for run in level.runs] == pytest.approx([55.1, 55.2])


def test_a_run_that_has_just_begun_changes_nothing_for_the_others(tmp_path: Path) -> None:
    write_run(tmp_path / "appo-2", [], level_name=LEVELS, algorithm="appo", seed=2)
    assert "count together" not in text_of(summarized(tmp_path))
    write_seed(tmp_path, "appo", 1)
    first, begun = (run.final_return for run in summarized(tmp_path).level.runs)
    assert (first, begun) == (pytest.approx(55.1), None)


def test_a_curve_begins_once_each_level_has_finished_a_game(tmp_path: Path) -> None:
    run = read(
        tmp_path, rows((0, 0, 5), (1000, 1, 6), (4000, 4, 7)), *level_rows(0, 0, 5, None),
        *level_rows(1000, 1, 6, 2), *level_rows(4000, 4, 7, 9),
    )  # fmt: skip
    assert run.curve.frames.tolist() == [1000, 4000]
    assert run.curve.returns.tolist() == [4, 8]
    run = read(tmp_path / "none", rows((0, 0, 5), (4000, 4, 7)), *level_rows(4000, 4, 7, None))
    assert run.final_return is None
    summary = summarized(tmp_path / "none")
    assert facts.headline(summary) == "No game has finished yet on some of the levels."


def test_rows_of_levels_that_began_with_a_resume_are_the_curve(tmp_path: Path) -> None:
    run = read(tmp_path, rows((0, 0, 5), (1000, 1, 6), (4000, 4, 7)), *level_rows(4000, 4, 7, 9))
    assert (run.curve.frames.tolist(), run.curve.returns.tolist()) == ([4000], [8])
    run = read(tmp_path, rows((0, 0, 5), (1000, 1, 6)))  # it has resumed, and has no row yet
    assert (run.kind, run.final_return) == (Kind.GAMES, 6)


@pytest.mark.parametrize("cut", [1, 4, 20])
def test_a_run_that_was_killed_within_a_row_keeps_the_rows_before(tmp_path: Path, cut: int) -> None:
    """Less its end, a row may look as if its level had no normalised return."""
    both = [level_rows(frames, frames // 1000, 5, 50, normalized=(0.5, 0.25))
            for frames in (0, 4000)]  # fmt: skip
    path = write_run(tmp_path, rows((0, 0, 5), (4000, 4, 7)), level_name=LEVELS)
    write_levels(path, [row for each in both for row in each])
    file = path / "metrics-levels.csv"
    file.write_text(file.read_text()[:-cut])
    run = runs.read(path)
    assert (run.kind, run.curve.frames.tolist()) == (Kind.NORMALIZED, [0])
    assert run.final_return == 0.375


def test_levels_whose_row_is_not_whole_yet_are_left_out(tmp_path: Path) -> None:
    """The levels' rows are written before that of all."""
    first, second = level_rows(0, 0, 5, 7), level_rows(4000, 4, 6, 8)
    run = read(tmp_path, rows((0, 0, 6)), *first, second[0])
    assert run.curve.returns.tolist() == [6]
    run = read(tmp_path, rows((0, 0, 6), (4000, 4, 7)), *first, second[0])
    assert run.curve.returns.tolist() == [6]


def test_levels_without_a_range_are_not_called_normalised_before_all_have_finished_a_game(
    tmp_path: Path,
) -> None:
    run = read(tmp_path, rows((4000, 4, 7)), *level_rows(4000, 4, 7, None))
    assert (run.kind, run.final_return) == (Kind.LEVELS, None)
