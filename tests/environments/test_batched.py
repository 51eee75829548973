"""Batched environments: which step an ending, a reward and an action belong to."""

from __future__ import annotations

import time

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from impala_tf.environments import suites, workers
from impala_tf.environments.batched import BatchedEnvironment
from impala_tf.environments.simplify import Simplify
from impala_tf.types import EnvOutput, Episode
from tests.helpers import worlds
from tests.helpers.games import BROKEN_WORLDS, WORLDS, actions, batched, environment_of, level


def scripted_environment() -> BatchedEnvironment:
    spec = suites.spec(level(f"{WORLDS}:Scripted-v0"))
    scripts = (worlds.SCRIPT, worlds.SCRIPT[1:])  # cut first, ended first
    makers = [lambda script=script: Simplify(worlds.Scripted(script), spec) for script in scripts]
    return batched(SyncVectorEnv(makers))


def stacked(env_outputs: list[EnvOutput]) -> EnvOutput:
    """Returns env outputs as [N, T + 1, ...]."""
    return EnvOutput(*(np.stack(field, axis=1) for field in zip(*env_outputs, strict=True)))


def test_flags_of_every_step() -> None:
    """If an ending, a reward or an action were off by one step, learning would fail silently."""
    environment = scripted_environment()
    steps = [environment.reset()] + [environment.step(actions(t % 3, 2)) for t in range(8)]
    seen = stacked(steps)
    yes, no = True, False
    # The first environment is truncated after 3 steps, then terminated after 2. The second one is
    # terminated after 2 steps, and after 4 it reports both, which counts as terminated.
    np.testing.assert_array_equal(
        seen.reward, [[0, 1, 2, 3, 0, 1, 2, 0, 1], [0, 1, 2, 0, 1, 2, 3, 4, 0]]
    )
    np.testing.assert_array_equal(seen.truncated, [[no, no, no, yes, no, no, no, no, no], [no] * 9])
    np.testing.assert_array_equal(
        seen.terminated,
        [[no, no, no, no, no, no, yes, no, no], [no, no, yes, no, no, no, no, yes, no]],
    )
    resets = [[yes, no, no, no, yes, no, no, yes, no], [yes, no, no, yes, no, no, no, no, yes]]
    np.testing.assert_array_equal(seen.autoreset, resets)
    np.testing.assert_array_equal(seen.episode_start, resets)
    np.testing.assert_array_equal(
        seen.last_action, [[0, 0, 1, 2, 0, 1, 2, 0, 1], [0, 2, 2, 2, 2, 2, 2, 2, 2]]
    )
    # (episode, step, the action that the environment received; its actions are called 5, 6 and 7).
    np.testing.assert_array_equal(
        seen.observation[0],
        [(0, 0, -1), (0, 1, 5), (0, 2, 6), (0, 3, 7)]  # the final observation is seen,
        + [(1, 0, -1), (1, 1, 6), (1, 2, 7)]  # the action on it is not
        + [(2, 0, -1), (2, 1, 6)],
    )
    assert [field.dtype for field in seen] == [
        np.float32, np.bool_, np.bool_, np.bool_, np.bool_, np.float32, np.int32,
    ]  # fmt: skip


def test_episodes_are_whole_games() -> None:
    """The reported return and length count every step that was played, and not the reset step."""
    environment = scripted_environment()
    environment.reset()
    for _ in range(4):
        environment.step(actions(0, 0))
    assert environment.pop_episodes() == [Episode(1.0 + 2.0, 2, 1), Episode(1.0 + 2.0 + 3.0, 3, 0)]
    assert environment.pop_episodes() == []
    environment.step(actions(0, 0))
    assert environment.reset().autoreset.all()
    for _ in range(4):  # the unfinished games, which the reset ended, do not count
        environment.step(actions(0, 0))
    assert environment.pop_episodes() == [Episode(3.0, 2, 1), Episode(1.0 + 2.0 + 3.0 + 4.0, 4, 0)]


def test_a_level_that_hangs_when_it_is_closed_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """An actor would wait for ever."""
    monkeypatch.setattr(workers, "_END_S", 2.0)
    env = level(f"{BROKEN_WORLDS}:DoesNotClose-v0", environment_processes=True)
    environment = environment_of(env, num_envs=2)
    environment.reset()
    environment.step(actions(0, 0))
    began = time.monotonic()
    environment.close()
    assert time.monotonic() - began < 60


def test_the_seed_determines_the_games() -> None:
    """The same --seed repeats a run, and no two environments of a run play the same game."""

    def start(seed: int) -> np.ndarray:
        pair = SyncVectorEnv([lambda: gymnasium.make("MountainCar-v0")] * 2)
        return batched(pair, seed).reset().observation

    np.testing.assert_array_equal(start(seed=7), start(seed=7))
    of_both_actors = np.concatenate([start(seed=7), start(seed=8)])
    assert len(np.unique(of_both_actors, axis=0)) == 4
    native = [environment_of(level("CartPole-v1"), num_envs=2, seed=7).reset() for _ in range(2)]
    np.testing.assert_array_equal(native[0].observation, native[1].observation)


def test_actions_are_repeated_on_other_levels_than_atari() -> None:
    """The rewards of all repeats count, and no repeat goes past the end of an episode."""
    environment = environment_of(level(f"{WORLDS}:Scripted-v0", num_action_repeats=2))
    environment.reset()
    steps = [environment.step(actions(1)) for _ in range(3)]
    assert [step.observation[0].tolist() for step in steps] == [[0, 2, 6], [0, 3, 6], [1, 0, -1]]
    assert [step.reward[0] for step in steps] == [1 + 2, 3, 0]
    assert environment.pop_episodes() == [Episode(6.0, 2)]
