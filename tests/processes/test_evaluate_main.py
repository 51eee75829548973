"""An evaluation of a level that breaks: one line for its author."""

from __future__ import annotations

from pathlib import Path

import pytest

from impala_tf.config import ConfigError, EvaluationConfig
from impala_tf.environments import suites
from impala_tf.processes import evaluate_main
from impala_tf.processes.players import Player
from impala_tf.types import AgentOutput, EnvOutput, Nest
from tests.helpers.games import BROKEN_WORLDS, level


def never_asked(seen: EnvOutput, state: Nest) -> tuple[AgentOutput, Nest]:
    raise AssertionError("no game begins")


@pytest.mark.parametrize(
    ("name", "settings", "problem"),
    [
        ("FaultyCartPole-v1", '{"fault": "raise"}', "raised RuntimeError: the pole is broken at "),
        ("MisfitCartPole", '{"fault": "none"}', "step returned None as an observation "),
        ("NanPictures-v0", "{}", "observation is NaN at [2, 3, 1] after action "),
    ],
)
def test_a_level_that_breaks_while_it_is_timed_is_one_line(
    name: str, settings: str, problem: str
) -> None:
    """It is stepped before the first game, to find out where to run it: that was a traceback."""
    env = level(f"{BROKEN_WORLDS}:{name}", level_kwargs=settings)
    player = Player(
        flags={"seed": 1, "metrics_interval_s": 10.0},
        environment=env,
        evaluation=EvaluationConfig(test_num_episodes=2),
        spec=suites.spec(env),
        source=Path("ckpt-1"),
        environment_frames=1,
        is_exported=False,
        initial_state=lambda num_envs: (),
        policy=lambda num_envs, seed, choice: never_asked,
    )
    with pytest.raises(ConfigError) as caught:
        evaluate_main.play(player, env)
    (line,) = caught.value.problems
    assert line.startswith(f"--level_name={env.level_name}: {problem}")
    assert line.endswith(" before the first game")
