"""Staggered resets: episodes of equal length must not end together, and nothing else may change."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from impala_tf.environments import suites
from impala_tf.environments.batched import BatchedEnvironment, cut_times
from impala_tf.environments.workers import Looks, in_processes
from impala_tf.types import EnvOutput
from tests.helpers import worlds
from tests.helpers.games import WORLDS, actions, level, random_steps

NEVER = 10**6
LENGTH = 12


def fixed_length() -> worlds.Scripted:
    return worlds.Scripted(((LENGTH, False, True),))


def resets(outputs: list[EnvOutput]) -> np.ndarray:
    return np.stack([each.autoreset for each in outputs])


@pytest.mark.parametrize("has_processes", [False, True])
def test_games_of_one_length_do_not_end_together(has_processes: bool) -> None:
    """All unrolls of a batch would show the same part of a game."""
    count = 8
    vector: Any = SyncVectorEnv([fixed_length] * count)
    if has_processes:
        one = vector.envs[0]
        looks = Looks(one.observation_space, one.action_space, one.metadata)
        vector = in_processes(fixed_length, count, looks)
    environment = BatchedEnvironment(vector, cut_at=cut_times(vector, LENGTH, seed=1))
    environment.reset()
    outputs = [environment.step(actions(*[0] * count)) for _ in range(6 * (LENGTH + 1))]
    environment.close()
    late = resets(outputs)[-(LENGTH + 1) :]
    np.testing.assert_array_equal(late.sum(0), np.ones(count))  # games have their usual length
    assert late.sum(1).max() <= 3


def test_a_cut_game_is_truncated_and_a_new_one_begins() -> None:
    """The observation that bootstraps must be the game's last one, and no action may be off."""
    vector = SyncVectorEnv([fixed_length] * 2)
    environment = BatchedEnvironment(vector, cut_at=np.array([3, NEVER]))
    outputs = [environment.reset()] + [environment.step(actions(0, 0)) for _ in range(6)]
    flags = [(o.truncated[0], o.autoreset[0], o.episode_start[0]) for o in outputs]
    no, yes = False, True
    assert flags == [
        (no, yes, yes), (no, no, no), (no, no, no), (yes, no, no),
        (no, yes, yes), (no, no, no), (no, no, no),
    ]  # fmt: skip
    assert [float(o.reward[0]) for o in outputs] == [0, 1, 2, 3, 0, 1, 2]
    assert not any(o.terminated.any() for o in outputs)
    for _ in range(2 * (LENGTH + 1) - 6):
        environment.step(actions(0, 0))
    # A cut game has no score, which would be that of a part of a game.
    whole = (LENGTH, sum(range(LENGTH + 1)))
    found = [
        (e.environment, e.episode_length, e.episode_return) for e in environment.pop_episodes()
    ]
    assert sorted(found) == [(0, *whole), (1, *whole), (1, *whole)]


@pytest.mark.parametrize("cut", [LENGTH, LENGTH + 1])
def test_a_game_that_ends_by_itself_is_not_cut(cut: int) -> None:
    """A game's first step, or its last one, is no place to cut."""
    environment = BatchedEnvironment(SyncVectorEnv([fixed_length]), cut_at=np.array([cut]))
    environment.reset()
    outputs = [environment.step(actions(0)) for _ in range(2 * (LENGTH + 1))]
    assert [t for t, each in enumerate(outputs, 1) if each.autoreset[0]] == [13, 26]
    assert len(environment.pop_episodes()) == 2


def test_the_other_episodes_are_the_same() -> None:
    """A cut resets one environment; the others must not notice."""
    env, count = level("Acrobot-v1"), 6
    cuts = np.array([NEVER, 20, NEVER, 35, NEVER, NEVER])
    usual, cut = (
        random_steps(BatchedEnvironment(suites.make(env, count, 5), cut_at=cut_at), 3, 150)
        for cut_at in (None, cuts)
    )
    others = cuts == NEVER
    for one, other in zip(usual, cut, strict=True):
        for before, after in zip(one, other, strict=True):
            np.testing.assert_array_equal(before[others], after[others])
    assert resets(cut)[21, 1] and resets(cut)[36, 3]
    # A new episode starts at rest: cosines near 1, the others near 0.
    np.testing.assert_allclose(cut[21].observation[1], [1, 0, 1, 0, 0, 0], atol=0.11)


@pytest.mark.parametrize("name", ["CartPole-v1", "PongNoFrameskip-v4", f"{WORLDS}:Pictures-v0"])
def test_other_environments_are_left_alone(name: str) -> None:
    """CartPole's own vector environment would restart all; the others have no time limit."""
    vector = suites.make(level(name), 4, 1)
    assert cut_times(vector, suites.spec(level(name)).time_limit, 1) is None


@pytest.mark.parametrize(
    ("name", "flags", "limit"),
    [
        ("Acrobot-v1", {}, 500),
        ("Acrobot-v1", {"num_action_repeats": 3}, 167),
        ("Acrobot-v1", {"level_kwargs": '{"max_episode_steps": 50}'}, 50),
        ("Acrobot-v1", {"level_kwargs": '{"max_episode_steps": -1}'}, 0),
        (f"CartPole-v1,{WORLDS}:ShortCartPole-v1", {}, 0),
        (f"{WORLDS}:acrobot", {}, 500),
    ],
)
def test_the_time_limit_is_that_of_an_agent_s_episode(
    name: str, flags: dict[str, Any], limit: int
) -> None:
    """Cuts that are spread over less than an episode would leave them close together."""
    assert suites.spec(level(name, **flags)).time_limit == limit
