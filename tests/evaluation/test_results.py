"""What an evaluation says: the gap to unseen levels, and scores over several levels."""

from __future__ import annotations

import json

import pytest
from rich.console import Console

from impala_tf.environments import procgen
from impala_tf.evaluation import games
from impala_tf.types import Episode
from tests.helpers.games import level

COINRUN = level("procgen:coinrun", num_levels=50, start_level=10)
TRAIN = games.summary([Episode(10.0, 20), Episode(8.0, 30)])
TEST = games.summary([Episode(10.0, 20), Episode(5.0, 30)])


def test_the_test_levels_are_all_those_after_the_training_levels() -> None:
    """A level that was trained on would make the gap look smaller."""
    sets = games.level_sets(COINRUN)
    assert sets["train"] == COINRUN
    assert (sets["test"].start_level, sets["test"].num_levels) == (60, 0)
    assert [procgen.level_range(levels) for levels in sets.values()] == ["10-59", "from 60"]


@pytest.mark.parametrize("env", [level("procgen:coinrun", num_levels=0), level("CartPole-v1")])
def test_without_unseen_levels_there_is_only_one_set(env) -> None:
    assert games.level_sets(env) == {"train": env}


def test_a_report_has_both_means_normalised_and_their_difference() -> None:
    """CoinRun's range is 5 to 10: a mean of 9 is 0.8, one of 7.5 is 0.5."""
    report = games.generalization(games.level_sets(COINRUN), {"train": TRAIN, "test": TEST})
    assert report["train"]["normalized_mean"] == pytest.approx(0.8)
    assert report["test"]["normalized_mean"] == pytest.approx(0.5)
    assert report["test"]["episode_returns"] == [10.0, 5.0]
    assert report["gap"] == pytest.approx(1.5)
    assert report["normalized_gap"] == pytest.approx(0.3)
    assert json.loads(json.dumps(report)) == report


def test_the_table_has_a_row_for_each_set_and_one_for_the_gap() -> None:
    report = games.generalization(games.level_sets(COINRUN), {"train": TRAIN, "test": TEST})
    console = Console(width=80)
    with console.capture() as capture:
        console.print(games.generalization_table(report))
    assert [line.split() for line in capture.get().splitlines()] == [
        ["levels", "games", "mean", "return", "normalised"],
        ["train", "10-59", "2", "9.00", "0.800"],
        ["test", "from", "60", "2", "7.50", "0.500"],
        ["gap", "1.50", "0.300"],
    ]


def test_other_levels_are_normalised_if_there_are_published_scores() -> None:
    assert games.with_normalized(level("CartPole-v1"), TRAIN) == TRAIN
    pong = games.with_normalized(level("ALE/Pong-v5"), {"mean": 14.6})
    assert pong == {"mean": 14.6, "normalized_mean": pytest.approx(1.0)}


def test_capped_scores_count_no_level_as_more_than_1() -> None:
    """One game that an agent plays at a hundred times the human score hides all others."""
    names = ("Pong", "Boxing", "Freeway", "Breakout")
    levels = [level(f"ALE/{name}-v5") for name in names]
    means = (100 * 35.3 - 20.7, 0.5 * 12 + 0.1, -0.1 * 29.6, 2 * 28.8 + 1.7)
    report = games.several_levels(levels, [{"mean": mean} for mean in means])
    assert [row["normalized_mean"] for row in report["levels"]] == pytest.approx(
        [100.0, 0.5, -0.1, 2.0]
    )
    assert report["normalized"] == pytest.approx(
        {"mean": 102.4 / 4, "median": 1.25, "capped_mean": 2.4 / 4, "capped_median": 0.75}
    )


def test_several_generated_levels_have_unseen_ones_each() -> None:
    """Scores on training levels alone would be quoted as if the agent had generalised."""
    levels = [level("procgen:coinrun"), level("procgen:starpilot")]
    report = games.several_levels(levels, [TRAIN, TRAIN], [TEST, TEST])
    coinrun, starpilot = report["levels"]
    assert (coinrun["mean"], coinrun["unseen"]["mean"]) == (TRAIN["mean"], TEST["mean"])
    assert coinrun["unseen"]["normalized_mean"] == pytest.approx(0.5)
    scores = [row["unseen"]["normalized_mean"] for row in (coinrun, starpilot)]
    assert report["normalized_unseen"]["mean"] == pytest.approx(sum(scores) / 2)
    console = Console(width=100)
    with console.capture() as capture:
        console.print(games.several_levels_table(report))
    assert "procgen:coinrun, unseen levels" in capture.get()
    assert "mean of all, unseen levels" in capture.get()


def test_a_level_without_published_scores_leaves_no_mean_over_levels() -> None:
    """It would be one of other levels than those that were played."""
    levels = [level("ALE/Pong-v5"), level("TetrisNoFrameskip-v4")]
    report = games.several_levels(levels, [{"mean": 14.6}, {"mean": 1.0}])
    assert report == {
        "levels": [
            {"level_name": "ALE/Pong-v5", "mean": 14.6, "normalized_mean": pytest.approx(1.0)},
            {"level_name": "TetrisNoFrameskip-v4", "mean": 1.0},
        ]
    }
