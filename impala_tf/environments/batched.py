"""Turns a Gymnasium vector environment into the steps that `types.py` describes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import VectorEnv

from impala_tf.types import EnvOutput, Episode

LIFE_LOST = "life_lost"
"""Key of `info`, bool [N]: a life was lost that ends an episode for learning but not the game."""


class BatchedEnvironment:
    """N environments, stepped together, with the flags of `types.EnvOutput`.

    Observations have the layout "from the environment" of `observations.py`. They are the
    environment's own arrays, which the next step may overwrite: copy what must last. (ALE returns
    new arrays at every step.)
    """

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        """Takes over `env`, which has discrete actions and NEXT_STEP autoreset."""
        self._env = env
        self._num_envs = env.num_envs
        self._first_action = _first_action(env)
        self._convert = _converter(env)
        self._no_life_lost = np.zeros(self._num_envs, np.bool_)
        self._episodes: list[Episode] = []
        self._game_over: np.ndarray = np.zeros(self._num_envs, np.bool_)
        self._returns = np.zeros(self._num_envs, np.float64)
        self._lengths = np.zeros(self._num_envs, np.int64)

    def reset(self) -> EnvOutput:
        """Starts new games everywhere and returns their first step; drops unfinished games."""
        observation, _ = self._env.reset()
        self._game_over = np.zeros(self._num_envs, np.bool_)
        self._returns.fill(0)
        self._lengths.fill(0)
        all_envs = np.ones(self._num_envs, np.bool_)
        no_envs = np.zeros(self._num_envs, np.bool_)
        return EnvOutput(
            reward=np.zeros(self._num_envs, np.float32),
            terminated=no_envs,
            truncated=no_envs.copy(),
            autoreset=all_envs,
            episode_start=all_envs.copy(),
            observation=self._convert(observation),
            last_action=np.zeros(self._num_envs, np.int32),
        )

    def step(self, actions: np.ndarray) -> EnvOutput:
        """Takes `actions`, int32 [N] from 0 to A - 1, and returns the step that follows."""
        observation, reward, terminated, truncated, info = self._env.step(
            actions + self._first_action
        )
        autoreset = self._game_over
        life_lost = info.get(LIFE_LOST, self._no_life_lost)
        reward = np.where(autoreset, 0, reward).astype(np.float32)
        self._game_over = terminated | truncated
        self._count(reward, autoreset)
        terminated = terminated | life_lost
        return EnvOutput(
            reward=reward,
            terminated=terminated,
            truncated=truncated & ~terminated,
            autoreset=autoreset,
            episode_start=autoreset | life_lost,
            observation=self._convert(observation),
            last_action=actions.astype(np.int32),
        )

    def pop_episodes(self) -> list[Episode]:
        """Returns the whole games that finished since the last call, oldest first."""
        episodes, self._episodes = self._episodes, []
        return episodes

    def close(self) -> None:
        """Closes the environments and the processes that they run in."""
        self._env.close()

    def _count(self, reward: np.ndarray, autoreset: np.ndarray) -> None:
        self._returns += reward
        self._lengths += ~autoreset
        for n in np.flatnonzero(self._game_over):
            self._episodes.append(Episode(float(self._returns[n]), int(self._lengths[n])))
        self._returns[self._game_over] = 0
        self._lengths[self._game_over] = 0


def _first_action(env: VectorEnv[Any, Any, Any]) -> np.integer[Any]:
    """Returns the environment's number of action 0; for most, this is 0."""
    space = env.single_action_space
    if not isinstance(space, Discrete):
        raise TypeError(f"BatchedEnvironment needs discrete actions, not {space}")
    return space.start


def _converter(env: VectorEnv[Any, Any, Any]) -> Callable[[np.ndarray], np.ndarray]:
    """Returns the conversion to float32 vectors, or to images with a channel axis."""
    space = env.single_observation_space
    if not isinstance(space, Box):
        raise TypeError(f"BatchedEnvironment needs Box observations, not {space}")
    if len(space.shape) == 1:
        return lambda observation: observation.astype(np.float32, copy=False)
    if len(space.shape) == 2:
        return lambda observation: observation[..., np.newaxis]
    return lambda observation: observation
