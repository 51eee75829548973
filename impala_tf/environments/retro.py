"""Console games, emulated by stable-retro and preprocessed like Atari games.

An action is a combination of buttons that stable-retro lists for the game, or else for its console:
one of 9 directions and one combination of the other buttons. A Genesis game has 9 x 14 = 126
actions, a NES game 9 x 4 = 36.

A process can run only one emulator, so each game has its own process.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import VectorEnv

from impala_tf.config import ConfigError, EnvironmentConfig, user_commands
from impala_tf.environments.atari import console_spec, frames_per_step
from impala_tf.environments.suite import Suite, missing_package, near_matches
from impala_tf.environments.workers import InProcesses
from impala_tf.types import EnvironmentSpec

_PREFIX = "retro:"
_EMULATOR_FPS = 60


class Retro(Suite):
    """The games of stable-retro."""

    about = "games of consoles, those whose ROMs are imported (extra retro)"

    def owns(self, level_name: str) -> bool:
        """Returns whether it has the prefix retro:."""
        return level_name.startswith(_PREFIX)

    def spec(self, env: EnvironmentConfig) -> EnvironmentSpec:
        """Describes a game. Briefly starts an emulator.

        Raises:
          ConfigError: there is no such game, its ROM is missing, or stable-retro is not installed.
        """
        game = _game(env.level_name)
        with contextlib.closing(_emulator(game)) as emulator:
            assert isinstance(emulator.action_space, Discrete)
            num_actions = int(emulator.action_space.n)
        rules = f"whole games, {num_actions} actions"
        return console_spec(env, f"stable-retro {game}", num_actions, rules)

    def make(
        self, env: EnvironmentConfig, spec: EnvironmentSpec, num_envs: int, num_threads: int
    ) -> VectorEnv[Any, Any, Any]:
        """Returns N games, each in its own process, which ends with the thread that calls this."""
        games = InProcesses(functools.partial(_make_game, env), num_envs, spec)
        games.metadata["render_fps"] = _EMULATOR_FPS
        return games

    def installed(self) -> list[str]:
        """Returns the names of the games whose ROMs are imported."""
        if importlib.util.find_spec("stable_retro") is None:
            return []
        from stable_retro import data

        level_names = []
        for game in data.list_games():
            with contextlib.suppress(FileNotFoundError):
                data.get_romfile_path(game)
                level_names.append(f"{_PREFIX}{game}")
        return level_names


class Preprocessing(gymnasium.Wrapper[np.ndarray, Any, np.ndarray, Any]):
    """Atari's preprocessing for an emulator that returns a frame uint8 [H, W, 3] at each step.

    It repeats actions, takes the maximum of the last two frames, converts it to grey, resizes it,
    and stacks K results: uint8 [K, H, W]. As in ALE, actions are sticky from one emulator frame to
    the next, and a game starts with 0 to `noop_max` frames without buttons.

    After a reset, the stack is the first frame after zeros. Rewards are unclipped.
    """

    def __init__(self, emulator: gymnasium.Env[Any, Any], env: EnvironmentConfig) -> None:
        super().__init__(emulator)
        self._flags = env
        shape = (env.stacked_frames, env.height, env.width)
        self.observation_space = Box(0, 255, shape, np.uint8)
        self._stack = np.zeros(shape, np.uint8)
        self._last_action = 0
        self._frames = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Restarts the game."""
        frame, info = self.env.reset(seed=seed, options=options)
        self._frames = self._last_action = 0
        for _ in range(self.np_random.integers(self._flags.noop_max + 1)):
            frame, *_ = self.env.step(0)
        self._stack[:] = 0
        self._push(frame)
        return self._stack.copy(), info

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Takes up to `frame_skip` x `num_action_repeats` frames, or fewer if the game ends."""
        rewards, frames, over, truncated = 0.0, [], False, False
        for _ in range(frames_per_step(self._flags)):
            if self.np_random.random() >= self._flags.repeat_action_probability:
                self._last_action = int(action)
            frame, reward, over, _, info = self.env.step(self._last_action)
            frames.append(frame)
            rewards += float(reward)
            self._frames += 1
            truncated = self._frames >= self._flags.max_episode_frames
            if over or truncated:
                break
        self._push(functools.reduce(np.maximum, frames[-2:]))
        return self._stack.copy(), rewards, over, truncated and not over, info

    def _push(self, frame: np.ndarray) -> None:
        """Adds the emulator's frame, uint8 [H, W, 3], in grey and resized."""
        import cv2

        grey = cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY)
        size = (self._flags.width, self._flags.height)
        self._stack[:-1] = self._stack[1:]
        self._stack[-1] = cv2.resize(grey, size, interpolation=cv2.INTER_AREA)


def _make_game(env: EnvironmentConfig) -> gymnasium.Env[Any, Any]:
    import cv2

    cv2.setNumThreads(1)  # the games' processes together already use all cores
    return Preprocessing(_emulator(_game(env.level_name)), env)


def _emulator(game: str) -> gymnasium.Env[Any, Any]:
    """Returns the game without preprocessing: a frame at each step, Discrete actions."""
    import stable_retro as retro

    emulator: gymnasium.Env[Any, Any] = retro.make(
        game, use_restricted_actions=retro.Actions.DISCRETE, render_mode="rgb_array"
    )
    return emulator


def _game(level_name: str) -> str:
    """Returns the game's name; ConfigError if there is no such game or its ROM is missing."""
    game, flag = level_name.removeprefix(_PREFIX), f"--level_name={level_name}"
    if importlib.util.find_spec("stable_retro") is None:
        raise ConfigError(missing_package(flag, "stable_retro"))
    from stable_retro import data

    if game not in (games := data.list_games()):
        raise ConfigError(f"{flag}: stable-retro has no such game; {near_matches(game, games)}")
    try:
        data.get_romfile_path(game)
    except FileNotFoundError as error:
        importer = user_commands.python("-m", "stable_retro.import")
        raise ConfigError(
            f"{flag}: its ROM is missing; if you own it, import it from the folder that holds it:"
            f" {importer} FOLDER"
        ) from error
    return game
