"""The Atari-5 score is that of the paper, and a game that is missing is named."""

from __future__ import annotations

from pathlib import Path

import atari5
import pytest

from impala_tf.environments.scores import ATARI_SCORES
from tests.helpers.logdirs import rows, write_run


def test_random_play_has_0_and_a_human_the_score_of_the_formula() -> None:
    random = {rom: ATARI_SCORES[rom][0] for rom in atari5.WEIGHTS}
    human = {rom: ATARI_SCORES[rom][1] for rom in atari5.WEIGHTS}
    assert atari5.atari5(random) == 0.0
    # 10 ** ((0.382 + 0.068 + 0.311 + 0.124 + 0.080) * log10(101)) - 1
    assert atari5.atari5(human) == pytest.approx(101**0.965 - 1)
    worse = {**human, "double_dunk": -24.0}
    assert atari5.atari5(worse) == pytest.approx(101**0.897 - 1)


def test_seeds_are_averaged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = {
        (rom, seed): write_run(tmp_path / rom / str(seed), rows((0, 0, 1), (4000, 3, 10.0 * seed)))
        for rom in atari5.WEIGHTS
        for seed in (1, 2)
    }
    given = [f"{rom}={path / 'metrics.csv'}" for (rom, _), path in paths.items()]
    assert atari5.main(given) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in shown[:-1]] == ["15.0"] * 5
    assert all(line.endswith("  2 seeds, 10.0 to 20.0") for line in shown[:-1])
    assert shown[-1].startswith("Atari-5 score: ")


def test_a_run_of_another_game_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its return would be normalised with scores that are not its game's."""
    run = write_run(tmp_path / "run", level_name="BoxingNoFrameskip-v4")
    assert atari5.main([f"qbert={run}"]) == 2
    refused = f"atari5.py: qbert={run}: its level is BoxingNoFrameskip-v4; give a run of qbert\n"
    assert capsys.readouterr().err == refused


def test_a_run_that_has_not_finished_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its return counts, but more training would change it."""
    given = []
    for rom in atari5.WEIGHTS:
        metrics = rows((0, 0, 1), (1000 if rom == "qbert" else 4000, 1, 10.0))
        level_name = f"ALE/{rom.title().replace('_', '')}-v5"
        given.append(f"{rom}={write_run(tmp_path / rom, metrics, level_name=level_name)}")
    assert atari5.main(given) == 0
    shown = capsys.readouterr()
    assert shown.out.splitlines()[-1].startswith("Atari-5 score: ")
    unfinished = f"qbert={tmp_path / 'qbert'}: has not finished: 1,000 of 4,000 frames"
    assert shown.err == f"atari5.py: {unfinished}\n"


def test_what_is_missing_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "run", level_name="QbertNoFrameskip-v4")
    assert atari5.main([f"qbert={run}"]) == 2
    assert "no runs of battle_zone, double_dunk, name_this_game, phoenix" in capsys.readouterr().err
    assert atari5.main([f"pong={run}"]) == 2
    assert "ROM one of battle_zone" in capsys.readouterr().err
