"""Several levels for one agent."""

from __future__ import annotations

import numpy as np
import pytest

from impala_tf.config import ConfigError
from impala_tf.environments import suites
from impala_tf.types import ActionSpec
from tests.helpers.games import WORLDS, batched, level, vector_of

CARTS = f"CartPole-v1,Acrobot-v1,{WORLDS}:MaskedCartPole-v1"
GAMES = "PongNoFrameskip-v4,BreakoutNoFrameskip-v4"
PICTURES = f"{WORLDS}:Pictures-v0,{WORLDS}:ThreeActions-v0"


def test_one_network_sees_what_is_the_same_in_all_levels() -> None:
    """Pong has 6 actions and Breakout 4; together they have the joystick's 18."""
    spec = suites.spec(level(GAMES))
    assert spec.tasks == tuple(GAMES.split(","))
    assert (spec.level_name, spec.actions) == (GAMES, ActionSpec("discrete", (18,)))
    assert spec.protocol.startswith("2 levels, 18 actions; the first: ALE pong 84x84 grey")
    assert suites.spec(level(PICTURES)).actions == ActionSpec("discrete", (3,))


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (CARTS, "CartPole-v1 and Acrobot-v1 differ in their observation"),
        ("CartPole-v1,Nope-v1", "--level_name=Nope-v1: no such level"),
        ("atari57,PongNoFrameskip-v4", "^--level_name=atari57,PongNoFrameskip-v4: has Pong"),
        (f"{WORLDS}:Pictures-v0,{WORLDS}:ContinuousPictures-v0", "have 2 actions and 1 cont"),
    ],
)
def test_levels_that_one_agent_cannot_learn_are_refused(names: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        suites.spec(level(names))


@pytest.mark.parametrize(
    ("num_levels", "num_actors", "expected"),
    [
        (2, 4, [[0], [1], [0], [1]]),
        (5, 2, [[0, 2, 4], [1, 3]]),
        (3, 1, [[0, 1, 2]]),
        (3, 2, [[0, 2], [1], [0, 2]]),  # one more than it was told
        (2, 0, [[0], [1], [0]]),  # an actor that cannot know how many there are
    ],
)
def test_every_level_has_an_actor(
    num_levels: int, num_actors: int, expected: list[list[int]]
) -> None:
    assert [suites.assigned(num_levels, k, num_actors) for k in range(len(expected))] == expected


def test_an_actor_divides_its_environments_among_its_levels() -> None:
    environment = batched(vector_of(level(PICTURES), 5, [0, 1]))
    assert environment.level_indices.tolist() == [0, 0, 0, 1, 1]
    environment.reset()
    # Of two actions, 2 means 0; of three, it is itself. The reward is the action.
    step = environment.step(np.array([2, 1, 0, 2, 1], np.int32))
    assert step.reward.tolist() == [0, 1, 0, 2, 1]
    assert step.last_action.tolist() == [2, 1, 0, 2, 1]
    for _ in range(7):
        environment.step(np.array([1, 1, 1, 2, 2], np.int32))
    found = environment.pop_episodes()
    environment.close()
    assert [(episode.level, episode.environment) for episode in found] == [
        (0, 0), (0, 1), (0, 2), (1, 3), (1, 4),
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="--envs_per_actor=1: an actor has 2 of the 2 levels"):
        vector_of(level(PICTURES), 1, [0, 1])


@pytest.mark.parametrize(
    ("names", "action", "rewards"),
    [
        (["Narrow", "Wide"], [0.5, 1], [1.5, 2.5 + 4]),
        (["FromZero", "FromFive"], [1, 2], [3, 6 + 9]),
        (["Bits", "TwoTwo"], [1, 0], [1, 2 + 1]),
    ],
)
def test_each_level_gets_an_action_in_its_own_units(
    names: list[str], action: list[float], rewards: list[float]
) -> None:
    """While an actor plays several of them, and while one of them is evaluated or filmed."""
    env = level(",".join(f"{WORLDS}:{name}Echo-v0" for name in names))
    actions = suites.spec(env).actions
    together = batched(vector_of(env, 2, [0, 1]))
    each = [batched(vector_of(env, 1, [k])) for k in range(2)]
    for environment in (together, *each):
        environment.reset()
    given = np.array([action, action], actions.dtype)
    step = together.step(given)
    np.testing.assert_array_equal(step.reward, rewards)
    np.testing.assert_array_equal(step.last_action, given)
    assert step.last_action.dtype == actions.dtype
    assert [float(one.step(given[:1]).reward[0]) for one in each] == rewards
    for environment in (together, *each):
        environment.close()
