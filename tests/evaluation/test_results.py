"""What an evaluation says: the gap to unseen levels, and scores over several levels."""

from __future__ import annotations

import pytest

from impala_tf.environments import procgen, suites
from impala_tf.evaluation import games
from impala_tf.types import Episode
from tests.helpers.games import level

COINRUN = level("procgen:coinrun", num_levels=50, start_level=10)
TRAIN = games.summary([Episode(10.0, 20), Episode(8.0, 30)])
TEST = games.summary([Episode(10.0, 20), Episode(5.0, 30)])


def test_unseen_levels_are_all_those_after_the_training_levels() -> None:
    """A level that was trained on would make the gap look smaller."""
    unseen = suites.unseen(COINRUN)
    assert unseen is not None
    assert (unseen.start_level, unseen.num_levels) == (60, 0)
    assert procgen.Procgen().level_range(unseen) == "from 60"
    for env in (level("procgen:coinrun", num_levels=0), level("CartPole-v1")):
        assert suites.unseen(env) is None


def test_capped_scores_count_no_level_as_more_than_1() -> None:
    """One game that an agent plays at a hundred times the human score hides all others."""
    names = ("Pong", "Boxing", "Freeway", "Breakout")
    means = (100 * 35.3 - 20.7, 0.5 * 12 + 0.1, -0.1 * 29.6, 2 * 28.8 + 1.7)
    scores = [
        suites.normalized(level(f"ALE/{name}-v5"), mean)
        for name, mean in zip(names, means, strict=True)
    ]
    assert scores == pytest.approx([100.0, 0.5, -0.1, 2.0])
    report = games.over_levels([{"normalized_mean": score} for score in scores])
    assert report["normalized"] == pytest.approx(
        {"mean": 102.4 / 4, "median": 1.25, "capped_mean": 2.4 / 4, "capped_median": 0.75}
    )


def test_several_generated_levels_have_unseen_ones_each() -> None:
    """Scores on training levels alone would be quoted as if the agent had generalised."""
    names = ("procgen:coinrun", "procgen:starpilot")
    rows = [
        {"level_name": name, **TRAIN, "unseen": {**TEST, "normalized_mean": score}}
        for name, score in zip(names, (0.5, 0.7), strict=True)
    ]
    report = games.over_levels(rows)
    assert report["levels"] == rows
    assert "normalized" not in report, "no level has a published score of what it trained on"
    assert report["normalized_unseen"]["mean"] == pytest.approx(0.6)
