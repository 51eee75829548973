"""Procgen: levels, their order, and what happens at their ends."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from impala_tf.config import ConfigError, EnvironmentConfig
from impala_tf.environments import suites
from impala_tf.environments.scores import PROCGEN16
from tests.helpers.games import actions, environment_of, level, random_steps, vector_of

BIGFISH = level("procgen:bigfish")


@pytest.mark.parametrize("name", PROCGEN16)
def test_every_game_can_be_played(name: str) -> None:
    environment = environment_of(level(name), num_envs=2)
    steps = random_steps(environment, 15, 10)
    environment.close()
    observations = np.stack([step.observation for step in steps])
    assert (observations.shape, observations.dtype) == ((11, 2, 64, 64, 3), np.uint8)
    assert (observations[0] != observations[-1]).any()


def test_level_5_is_the_same_game_in_a_set_of_one_or_of_many_levels() -> None:
    alone = vector_of(level("procgen:coinrun", start_level=5, num_levels=1), 1)
    many = vector_of(level("procgen:coinrun", start_level=4, num_levels=3), 16)
    (expected, _), (found, info) = alone.reset(seed=2), many.reset(seed=1)
    is_5 = info["level_seed"] == 5
    assert is_5.any() and not is_5.all()
    assert [np.array_equal(each, expected[0]) for each in found] == is_5.tolist()
    alone.close()
    many.close()


def played_levels(env: EnvironmentConfig, seed: int) -> list[set[int]]:
    """Returns the levels that each of eight environments played in 200 steps."""
    games = vector_of(env, 8)
    _, info = games.reset(seed=seed)
    seen = [info["level_seed"]]
    rng = np.random.default_rng(0)
    for _ in range(200):
        seen.append(games.step(rng.integers(0, 15, 8))[4]["level_seed"])
    games.close()
    return [set(row.tolist()) for row in np.stack(seen, axis=1)]


@pytest.mark.parametrize(
    ("start_level", "num_levels", "played", "named"),
    [
        (1000, 3, range(1000, 1003), "levels 1000-1002,"),
        (2**31 - 4, 0, range(2**31 - 4, 2**31), "levels from 2147483644,"),
    ],
)
def test_the_levels_are_those_that_the_flags_name(
    start_level: int, num_levels: int, played: range, named: str
) -> None:
    """An agent that saw a test level in training would look better than it is."""
    env = level("procgen:bigfish", start_level=start_level, num_levels=num_levels)
    found = set.union(*played_levels(env, seed=1))
    assert found <= set(played)
    assert len(found) >= 3
    assert named in suites.spec(env).protocol


def test_environments_and_seeds_play_the_levels_in_different_orders() -> None:
    """Otherwise more environments or actors would bring no more experience."""
    first, second = (played_levels(BIGFISH, seed) for seed in (1, 2))
    assert first == played_levels(BIGFISH, 1)
    orders = [tuple(sorted(levels)) for levels in first + second]
    assert len(set(orders)) == 16


def test_an_episode_ends_with_its_own_final_observation() -> None:
    """The next step is the reset, whose action is ignored; the final observation is not lost."""
    environment = environment_of(BIGFISH, num_envs=8)
    steps = random_steps(environment, 15, 400)
    environment.close()
    terminated, autoreset, reward = (
        np.stack([getattr(step, name) for step in steps])
        for name in ("terminated", "autoreset", "reward")
    )
    observation = np.stack([step.observation for step in steps]).astype(np.int32)
    ends = np.argwhere(terminated[:-1])
    assert len(ends) >= 8
    np.testing.assert_array_equal(autoreset[1:], terminated[:-1])
    assert not reward[autoreset].any()
    change = np.abs(np.diff(observation, axis=0)).mean(axis=(2, 3, 4))
    into_the_end = np.array([change[t - 1, n] for t, n in ends])
    into_the_next = np.array([change[t, n] for t, n in ends])
    assert into_the_end.max() < 8 < np.median(into_the_next)


def test_the_time_limit_truncates() -> None:
    """In a maze, an agent that does nothing reaches the limit of 500 steps. Nothing ended there."""
    environment = environment_of(level("procgen:maze"), num_envs=2)
    environment.reset()
    steps = [environment.step(actions(4, 4)) for _ in range(502)]
    environment.close()
    assert np.flatnonzero([step.truncated.all() for step in steps]).tolist() == [499]
    assert not any(step.terminated.any() for step in steps)
    assert steps[500].autoreset.all()
    assert [episode.episode_length for episode in environment.pop_episodes()] == [500, 500]


def test_missing_shared_libraries_name_the_debian_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    with pytest.raises(ConfigError, match=r"libQt5Gui.so.5; on Debian: apt-get install libqt5gui5"):
        vector_of(BIGFISH, 1)
