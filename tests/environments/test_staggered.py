"""Staggered resets: episodes of equal length must not end together, and nothing else may change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from impala_tf.environments import batched, suites
from impala_tf.environments.batched import BatchedEnvironment
from impala_tf.environments.simplify import Simplify
from impala_tf.environments.workers import InProcesses
from tests.helpers import worlds
from tests.helpers.games import WORLDS, actions, level, random_steps, vector_of

NEVER = 10**6
LENGTH = 12
SPEC = suites.spec(level(f"{WORLDS}:Scripted-v0"))


def fixed_length() -> Simplify:
    return Simplify(worlds.Scripted(((LENGTH, False, True),)), SPEC)


def cut_at(
    monkeypatch: pytest.MonkeyPatch, cuts: list[int], make: Callable[[], Any]
) -> BatchedEnvironment:
    monkeypatch.setattr(batched, "cut_times", lambda *_: np.array(cuts))
    return BatchedEnvironment(make, seed=5, stagger=LENGTH)


@pytest.mark.parametrize("has_processes", [False, True])
def test_games_of_one_length_do_not_end_together(has_processes: bool) -> None:
    """All unrolls of a batch would show the same part of a game."""
    count = 4

    def make() -> Any:
        if has_processes:
            return InProcesses(fixed_length, count, SPEC)
        return SyncVectorEnv([fixed_length] * count)

    environment = BatchedEnvironment(make, seed=1, stagger=LENGTH)
    environment.reset()
    outputs = [environment.step(actions(*[0] * count)) for _ in range(6 * (LENGTH + 1))]
    environment.close()
    late = np.stack([each.autoreset for each in outputs[-(LENGTH + 1) :]])
    np.testing.assert_array_equal(late.sum(0), np.ones(count))  # games have their usual length
    assert late.sum(1).max() == 1


def test_a_cut_game_is_truncated_and_a_new_one_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """The observation that bootstraps must be the game's last one, and no action may be off."""
    environment = cut_at(monkeypatch, [3, NEVER], lambda: SyncVectorEnv([fixed_length] * 2))
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


def test_a_game_that_ends_by_itself_is_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """A game's first step, or its last one, is no place to cut."""
    vector = SyncVectorEnv([fixed_length] * 2)
    environment = cut_at(monkeypatch, [LENGTH, LENGTH + 1], lambda: vector)
    environment.reset()
    outputs = [environment.step(actions(0, 0)) for _ in range(2 * (LENGTH + 1))]
    assert [t for t, each in enumerate(outputs, 1) if each.autoreset.all()] == [13, 26]
    assert len(environment.pop_episodes()) == 4


def test_native_environments_are_left_alone() -> None:
    """They might restart all."""
    made = BatchedEnvironment(lambda: vector_of(level("CartPole-v1"), 4), seed=1, stagger=2)
    assert not any(output.truncated.any() for output in random_steps(made, 2, 7))


def test_the_time_limit_is_that_of_an_agent_s_episode() -> None:
    """Cuts that are spread over less than an episode would leave them close together."""
    assert suites.spec(level("Acrobot-v1", num_action_repeats=3)).time_limit == 167
    assert suites.spec(level(f"{WORLDS}:acrobot")).time_limit == 500
