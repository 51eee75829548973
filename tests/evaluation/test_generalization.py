"""The generalisation gap: the same agent on the levels it was trained on and on unseen ones."""

from __future__ import annotations

import json

import pytest
from rich.console import Console

from impala_tf.environments import procgen
from impala_tf.evaluation import generalization, play
from impala_tf.types import Episode
from tests.helpers.games import level

COINRUN = level("procgen:coinrun", num_levels=50, start_level=10)
TRAIN = play.summary([Episode(10.0, 20), Episode(8.0, 30)])
TEST = play.summary([Episode(10.0, 20), Episode(5.0, 30)])


def test_the_test_levels_are_all_those_after_the_training_levels() -> None:
    """A level that was trained on would make the gap look smaller."""
    sets = generalization.level_sets(COINRUN)
    assert sets["train"] == COINRUN
    assert (sets["test"].start_level, sets["test"].num_levels) == (60, 0)
    assert [procgen.level_range(levels) for levels in sets.values()] == ["10-59", "from 60"]


@pytest.mark.parametrize("env", [level("procgen:coinrun", num_levels=0), level("CartPole-v1")])
def test_without_unseen_levels_there_is_only_one_set(env) -> None:
    assert generalization.level_sets(env) == {"train": env}


def test_a_report_has_both_means_normalised_and_their_difference() -> None:
    """CoinRun's range is 5 to 10: a mean of 9 is 0.8, one of 7.5 is 0.5."""
    report = generalization.report(
        generalization.level_sets(COINRUN), {"train": TRAIN, "test": TEST}
    )
    assert report["train"]["normalized_mean"] == pytest.approx(0.8)
    assert report["test"]["normalized_mean"] == pytest.approx(0.5)
    assert report["test"]["episode_returns"] == [10.0, 5.0]
    assert report["gap"] == pytest.approx(1.5)
    assert report["normalized_gap"] == pytest.approx(0.3)
    assert json.loads(json.dumps(report)) == report


def test_the_table_has_a_row_for_each_set_and_one_for_the_gap() -> None:
    report = generalization.report(
        generalization.level_sets(COINRUN), {"train": TRAIN, "test": TEST}
    )
    console = Console(width=80)
    with console.capture() as capture:
        console.print(generalization.table(report))
    assert [line.split() for line in capture.get().splitlines()] == [
        ["levels", "games", "mean", "return", "normalised"],
        ["train", "10-59", "2", "9.00", "0.800"],
        ["test", "from", "60", "2", "7.50", "0.500"],
        ["gap", "1.50", "0.300"],
    ]


def test_other_levels_are_normalised_if_there_are_published_scores() -> None:
    assert generalization.normalized_mean(level("CartPole-v1"), TRAIN) == {}
    pong = generalization.normalized_mean(level("ALE/Pong-v5"), {"mean": 14.6})
    assert pong == {"normalized_mean": pytest.approx(1.0)}
