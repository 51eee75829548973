"""Procgen: levels, their order, and what happens at their ends."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from impala_tf.config import ConfigError
from impala_tf.environments import suites
from impala_tf.environments.scores import PROCGEN16
from impala_tf.types import ActionSpec, ObservationSpec
from tests.helpers.games import actions, environment_of, level, random_steps, vector_of

BIGFISH = level("procgen:bigfish")


def test_spec_of_a_procgen_level() -> None:
    env = level("procgen:fruitbot", distribution_mode="hard", num_levels=500, start_level=7)
    spec = suites.spec(env)
    assert (spec.kind, spec.observation) == ("procgen", ObservationSpec("image", (64, 64, 3)))
    assert (spec.actions, spec.frames_per_step) == (ActionSpec("discrete", (15,)), 1)
    assert spec.protocol.startswith(
        "Procgen fruitbot 64x64 RGB, hard, levels 7-506, 15 actions, at"
    )


@pytest.mark.parametrize("name", PROCGEN16)
def test_every_game_can_be_played(name: str) -> None:
    environment = environment_of(level(name), num_envs=2)
    steps = random_steps(environment, 15, 10)
    environment.close()
    observations = np.stack([step.observation for step in steps])
    assert (observations.shape, observations.dtype) == ((11, 2, 64, 64, 3), np.uint8)
    assert (observations[0] != observations[-1]).any()


def test_the_level_seed_makes_the_level() -> None:
    """Level 5 must be the same game in every run, in a set of one or of many levels."""
    alone = [level("procgen:coinrun", start_level=5, num_levels=1) for _ in range(2)]
    games = [random_steps(environment_of(env, seed=seed), 15, 60) for seed, env in enumerate(alone)]
    for one, other in zip(*games, strict=True):
        np.testing.assert_array_equal(one.observation, other.observation)
        np.testing.assert_array_equal(one.reward, other.reward)
    many = vector_of(level("procgen:coinrun", start_level=4, num_levels=3), 16)
    observation, info = many.reset(seed=1)
    at_level_5 = np.flatnonzero(info["level_seed"] == 5)
    assert 0 < len(at_level_5) < 16
    for n in range(16):
        same = np.array_equal(observation[n], games[0][0].observation[0])
        assert same == (n in at_level_5)
    many.close()


def played_levels(env, seed: int, steps: int = 400) -> list[set[int]]:
    """Returns the levels that each of eight environments played."""
    games = vector_of(env, 8)
    _, info = games.reset(seed=seed)
    seen = [info["level_seed"]]
    rng = np.random.default_rng(0)
    for _ in range(steps):
        seen.append(games.step(rng.integers(0, 15, 8))[4]["level_seed"])
    games.close()
    return [set(row.tolist()) for row in np.stack(seen, axis=1)]


@pytest.mark.parametrize(
    ("start_level", "num_levels", "played"),
    [(0, 200, range(200)), (1000, 3, range(1000, 1003)), (2**31 - 4, 0, range(2**31 - 4, 2**31))],
)
def test_the_levels_are_those_that_the_flags_name(start_level, num_levels, played) -> None:
    """An agent that saw a test level in training would look better than it is."""
    env = level("procgen:bigfish", start_level=start_level, num_levels=num_levels)
    found = set.union(*played_levels(env, seed=1))
    assert found <= set(played)
    assert len(found) >= min(3, len(played))


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


@pytest.mark.parametrize(
    ("name", "flags", "problem"),
    [
        ("procgen:coinrum", {}, "no such game; near matches: coinrun"),
        ("procgen:Coinrun", {}, "near matches: coinrun"),
        ("procgen:coinrun", {"num_action_repeats": 4}, "^--num_action_repeats=4: .* leave the"),
    ],
)
def test_what_procgen_cannot_do_is_refused(name: str, flags: dict[str, int], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        suites.spec(level(name, **flags))
    assert len(caught.value.problems) == 1


def test_missing_shared_libraries_name_the_debian_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    with pytest.raises(ConfigError, match=r"libQt5Gui.so.5; on Debian: apt-get install libqt5gui5"):
        vector_of(BIGFISH, 1)
