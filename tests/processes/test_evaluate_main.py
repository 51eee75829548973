"""An evaluation of a level whose games do not end or whose code raises: a line for its author."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from impala_tf import config as configs
from impala_tf.agents.interface import Policy
from impala_tf.config import Config, EnvironmentConfig, EvaluationConfig
from impala_tf.environments import suites
from impala_tf.evaluation import games
from impala_tf.logdir import Logdir
from impala_tf.processes import evaluate_main, evaluator_main, players
from impala_tf.processes.players import Player
from impala_tf.types import AgentOutput, EnvOutput, Nest
from tests.helpers.games import WORLDS, level


def always_0(seen: EnvOutput, state: Nest) -> tuple[AgentOutput, Nest]:
    num_envs = len(seen.reward)
    return AgentOutput(np.zeros(num_envs, np.int32), np.zeros((num_envs, 2), np.float32)), state


def player_of(env: EnvironmentConfig, policy: Policy) -> Player:
    return Player(
        flags={"seed": 1, "metrics_interval_s": 10.0, "agent_name": "A"},
        environment=env,
        evaluation=EvaluationConfig(test_num_episodes=2),
        spec=suites.spec(env),
        source=Path("ckpt-1"),
        environment_frames=1,
        is_exported=False,
        initial_state=lambda num_envs: (),
        policy=lambda num_envs, seed, choice: policy,
    )


CUT = (
    "2 of 2 games had not ended after 5 steps and were cut there; the level needs a time limit"
    " (`max_episode_steps`)"
)


def test_the_result_says_that_games_were_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its games last 7 steps."""
    monkeypatch.setattr(games, "LONGEST_GAME", 5)
    result, (_, note) = evaluate_main.evaluate(player_of(level(f"{WORLDS}:Pictures-v0"), always_0))
    assert note == f"{WORLDS}:Pictures-v0: {CUT}"
    assert (result["games_cut"], result["episode_lengths"]) == (2, [5, 5])
    both = level(f"{WORLDS}:Pictures-v0,{WORLDS}:ArrayRewards-v0")
    result, (_, *notes) = evaluate_main.evaluate(player_of(both, always_0))
    assert notes == [f"{WORLDS}:{name}-v0: {CUT}" for name in ("Pictures", "ArrayRewards")]
    monkeypatch.undo()
    result, (text,) = evaluate_main.evaluate(player_of(level(f"{WORLDS}:Pictures-v0"), always_0))
    assert str(text).endswith("min 0.00, max 0.00")
    assert "games_cut" not in result


def test_evaluations_of_a_run_say_that_games_were_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(games, "LONGEST_GAME", 5)
    env = level(f"{WORLDS}:Pictures-v0")
    player = player_of(env, always_0)
    player = player._replace(flags={**player.flags, "logdir": str(tmp_path)})
    monkeypatch.setattr(players, "of_checkpoint", lambda trained: player)
    config = configs.replace(Config(), eval_every=1)
    trained: Any = SimpleNamespace(progress={}, environment_frames=7, config=config)
    evaluator_main.evaluate(trained)
    found = json.loads(Logdir(tmp_path).evaluator_result.read_text())
    assert found["notes"] == [f"evaluation of {env.level_name}: {CUT}"]
    assert found["rows"][0]["length_mean"] == 5
