"""Games of consoles: preprocessed as Atari games are, and what is refused."""

from __future__ import annotations

from typing import Any

import cv2
import gymnasium
import numpy as np
import stable_retro
from gymnasium.spaces import Box, Discrete

from impala_tf.environments.retro import Preprocessing
from tests.helpers.games import actions, environment_of, level

AIRSTRIKER = "retro:Airstriker-Genesis-v0"  # its ROM comes with the package
SMALL = {"width": 24, "height": 20, "stacked_frames": 3}


class Emulator(gymnasium.Env[np.ndarray, Any]):
    """Frame t is `20 + t + action` everywhere, 100 more if t is odd, and rewards with t.

    The game ends at frame `end`. Real games flicker, too: some draw an object in every other frame.
    """

    observation_space = Box(0, 255, (4, 6, 3), np.uint8)
    action_space = Discrete(100)

    def __init__(self, end: int = 1000) -> None:
        self._end = end
        self.actions: list[int] = []

    def reset(self, **kwargs: Any) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(**kwargs)
        self._frame = 0
        return self._screen(0), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._frame += 1
        self.actions.append(action)
        return self._screen(action), self._frame, self._frame == self._end, False, {}

    def _screen(self, action: int) -> np.ndarray:
        return np.full((4, 6, 3), 20 + self._frame + action + 100 * (self._frame % 2), np.uint8)


def preprocessed(end: int = 1000, **flags: Any) -> tuple[Emulator, Preprocessing]:
    emulator = Emulator(end)
    return emulator, Preprocessing(emulator, level(AIRSTRIKER, **SMALL, **flags))


def stack_of(observation: np.ndarray) -> list[int]:
    """Returns the brightness of each frame of a stack; all its pixels must have it."""
    assert observation.shape == (3, 20, 24)
    assert all(len(np.unique(frame)) == 1 for frame in observation)
    return observation[:, 0, 0].tolist()


def test_frames_are_repeated_maximised_and_stacked() -> None:
    """The third frame of each step is brighter than the fourth, and the first is not looked at."""
    emulator, game = preprocessed(noop_max=0, frame_skip=4)
    observation, _ = game.reset(seed=1)
    assert stack_of(observation) == [0, 0, 20]  # zeros and the first frame, as after Atari's reset
    observation, reward, *_ = game.step(50)
    assert (stack_of(observation), reward) == ([0, 20, 173], 1 + 2 + 3 + 4)
    observation, reward, *_ = game.step(10)
    assert (stack_of(observation), reward) == ([20, 173, 137], 5 + 6 + 7 + 8)
    assert emulator.actions == [50] * 4 + [10] * 4
    observation, _ = game.reset()
    assert stack_of(observation) == [0, 0, 20]


def test_an_end_or_the_limit_of_frames_cuts_a_step_short() -> None:
    """An emulator that is stepped after its end shows another game."""
    _, game = preprocessed(end=6, noop_max=0)
    game.reset(seed=1)
    game.step(0)
    assert game.step(0)[1:4] == (5 + 6, True, False)
    _, game = preprocessed(max_episode_frames=6, noop_max=0)
    game.reset(seed=1)
    game.step(0)
    assert game.step(0)[1:4] == (5 + 6, False, True)


def test_games_start_with_0_to_noop_max_no_ops() -> None:
    """Every game starts at the same saved position, so they would all begin alike."""
    emulator, game = preprocessed(noop_max=2)
    started_at = {stack_of(game.reset(seed=seed)[0])[-1] for seed in range(20)}
    assert started_at == {20, 121, 22}
    assert set(emulator.actions) == {0}


def test_a_sticky_action_lasts_into_the_next_step() -> None:
    emulator, game = preprocessed(noop_max=0, repeat_action_probability=0.5)
    game.reset(seed=1)
    for action in range(1, 51):
        game.step(action)
    wanted = np.repeat(np.arange(1, 51), 4)
    executed = np.array(emulator.actions)
    assert set((wanted - executed).tolist()) >= {0, 1}
    # At frame k of a step, the action is replaced unless it was sticky k times: 1/2, 3/4, ...
    old = (wanted != executed).reshape(50, 4).mean(axis=0)
    np.testing.assert_allclose(old, [0.5, 0.25, 0.125, 0.0625], atol=0.15)


def test_several_games_run_at_once_and_show_the_screen_in_grey() -> None:
    """A process can hold only one emulator."""
    env = level(AIRSTRIKER, noop_max=0, frame_skip=1, max_episode_frames=6)
    environment = environment_of(env, num_envs=2)
    emulator = stable_retro.make(
        "Airstriker-Genesis-v0",
        use_restricted_actions=stable_retro.Actions.DISCRETE,
        render_mode="rgb_array",
    )
    output, (screen, _) = environment.reset(), emulator.reset()
    for action in range(100, 126, 5):
        grey = cv2.cvtColor(screen, cv2.COLOR_RGB2GRAY)
        expected = cv2.resize(grey, (84, 84), interpolation=cv2.INTER_AREA)
        assert (output.observation[:, -1] == expected).all()
        output = environment.step(actions(action, action))
        screen, *_ = emulator.step(action)
    assert [episode.episode_length for episode in environment.pop_episodes()] == [6, 6]
    emulator.close()
    environment.close()
