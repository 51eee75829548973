"""Scores can be compared with published ones only if they are normalised in the same way."""

from __future__ import annotations

import pytest

from impala_tf.environments import atari, scores, suites
from impala_tf.environments.scores import ATARI57
from tests.helpers.games import level


def test_every_atari_level_has_the_scores_of_its_own_rom() -> None:
    assert len(ATARI57) == len(set(ATARI57)) == 57
    for name in ATARI57:
        rom = atari.rom_of(name)
        assert rom is not None, name
        assert atari.Atari().score_range(level(name)) == scores.ATARI_SCORES[rom], name


@pytest.mark.parametrize(
    ("env", "score", "expected"),
    [
        (level("PongNoFrameskip-v4"), 21.0, (21.0 + 20.7) / (14.6 + 20.7)),
        (level("ALE/MsPacman-v5"), 307.3, 0.0),
        (level("Skiing-v4"), -17098.1 - (17098.1 - 4336.9), -1.0),
        (level("procgen:fruitbot"), 15.45, 0.5),  # halfway from -1.5 to 32.4
        (level("procgen:fruitbot", distribution_mode="hard"), 27.2, 1.0),
    ],
)
def test_scores_are_normalised_by_hand_computed_values(env, score, expected) -> None:
    assert suites.normalized(env, score) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("table", "sums"),
    [
        (scores.ATARI_SCORES, (50864.9, 606494.2)),
        (scores.PROCGEN_SCORES["easy"], (39.0, 309.0)),
        (scores.PROCGEN_SCORES["hard"], (26.5, 284.4)),
    ],
)
def test_the_tables_hold_the_published_figures(table, sums) -> None:
    """The sums of both columns: a wrong digit changes them."""
    zeros, ones = zip(*table.values(), strict=True)
    assert (sum(zeros), sum(ones)) == pytest.approx(sums)
