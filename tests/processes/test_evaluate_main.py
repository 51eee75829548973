"""An evaluation of a level whose games do not end or whose code raises: a line for its author."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from impala_tf import config as configs
from impala_tf.config import Config, EnvironmentConfig
from impala_tf.environments import suites
from impala_tf.evaluation import games
from impala_tf.logdir import Logdir
from impala_tf.processes import evaluate_main, evaluator_main
from impala_tf.processes.players import Player
from impala_tf.types import AgentOutput, EnvOutput, Nest
from tests.helpers.games import WORLDS, level


def always_0(seen: EnvOutput, state: Nest) -> tuple[AgentOutput, Nest]:
    num_envs = len(seen.reward)
    return AgentOutput(np.zeros(num_envs, np.int32), np.zeros((num_envs, 2), np.float32)), state


def player_of(env: EnvironmentConfig, **flags: Any) -> Player:
    return Player(
        config=configs.replace(Config(), **{**vars(env), "test_num_episodes": 2, **flags}),
        spec=suites.spec(env),
        source=Path("ckpt-1"),
        progress={"environment_frames": 7},
        initial_state=lambda num_envs: (),
        policy=lambda num_envs, seed, choice: always_0,
    )


CUT = "2 of 2 games had not ended after 5 steps"


def test_the_result_says_that_games_were_cut(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its games last 7 steps."""
    names = [f"{WORLDS}:Pictures-v0", f"{WORLDS}:ArrayRewards-v0"]
    monkeypatch.setattr(games, "LONGEST_GAME", 5)
    for count in (1, 2):
        result = evaluate_main.evaluate(player_of(level(",".join(names[:count]))))
        for row in result.get("levels", [result]):
            assert (row["games_cut"], row["episode_lengths"]) == (2, [5, 5])
        evaluate_main.show(result)
        printed = capsys.readouterr().out
        assert all(f"{name}: {CUT}" in printed for name in names[:count])
    monkeypatch.undo()
    result = evaluate_main.evaluate(player_of(level(names[0])))
    evaluate_main.show(result)
    assert capsys.readouterr().out.endswith("min 0.00, max 0.00\n")
    assert "games_cut" not in result


def test_evaluations_of_a_run_say_that_games_were_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(games, "LONGEST_GAME", 5)
    env = level(f"{WORLDS}:Pictures-v0")
    evaluator_main.evaluate(player_of(env, logdir=str(tmp_path), eval_every=1))
    found = json.loads(Logdir(tmp_path).evaluator_result.read_text())
    (note,) = found["notes"]
    assert env.level_name in note and CUT in note
    (row,) = found["rows"]
    assert (row["length_mean"], row["environment_frames"]) == (5, 7)
