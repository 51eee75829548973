"""Converts the steps of a Gymnasium vector environment to those that `types.py` describes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

from impala_tf.config import plug_ins
from impala_tf.environments import spaces
from impala_tf.environments.infos import OWN, Info, InfoMetrics
from impala_tf.environments.workers import close
from impala_tf.types import EnvOutput, Episode

LIFE_LOST = f"a life was lost{OWN}"
"""Key of `info`, bool [N]: a life was lost that ends an episode for learning but not the game."""
CUT = f"an episode was cut{OWN}"
"""Key of `info`, bool [N]: an episode was truncated here whose return does not count."""


class BatchedEnvironment:
    """N environments, stepped together, which return `types.EnvOutput`.

    Observations have the layout "from the environment" of `observations.py`. They are the
    environment's own arrays, which the next step may overwrite: copy what must last. (ALE returns
    new arrays at every step.)

    Attributes:
      level_indices: int32 [N], the level of each environment, an index in EnvironmentSpec.levels.
    """

    restarts = 0  # `GuardedEnvironment` counts them

    def __init__(self, env: VectorEnv[Any, Any, Any], infos: InfoMetrics | None = None) -> None:
        """Takes ownership of an environment.

        Args:
          env: the environment, whose autoreset mode is NEXT_STEP.
          infos: reads --info_metrics at the end of episodes; None: there are none.
        """
        self._env = env
        self._infos = infos or InfoMetrics(())
        self._num_envs = env.num_envs
        actions = spaces.action_spec(env.single_action_space)
        self._no_action = np.zeros((self._num_envs, *actions.shape), actions.dtype)
        self._to_environment = spaces.action_converter(env.single_action_space)
        self._to_agent = spaces.observation_converter(env.single_observation_space)
        self.level_indices: np.ndarray = getattr(
            env.unwrapped, "level_indices", np.zeros(self._num_envs, np.int32)
        )
        self._none = np.zeros(self._num_envs, np.bool_)
        self._episodes: list[Episode] = []
        self._game_over: np.ndarray = np.zeros(self._num_envs, np.bool_)
        self._returns = np.zeros(self._num_envs, np.float64)
        self._lengths = np.zeros(self._num_envs, np.int64)

    def reset(self) -> EnvOutput:
        """Starts new games everywhere and returns their first step. Drops unfinished games."""
        with exits_are_errors():
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
            observation=self._to_agent(observation),
            last_action=self._no_action,
        )

    def step(self, actions: np.ndarray) -> EnvOutput:
        """Takes actions [N, *ActionSpec.shape] and returns the next step."""
        with exits_are_errors():
            observation, reward, terminated, truncated, info = self._env.step(
                self._to_environment(actions)
            )
        life_lost = info.get(LIFE_LOST, self._none)
        was_over, self._game_over = self._game_over, terminated | truncated
        reward = np.where(was_over, 0, reward)
        self._count(reward, was_over, info)
        terminated = terminated | life_lost
        return EnvOutput(
            reward=reward.astype(np.float32),
            terminated=terminated,
            truncated=truncated & ~terminated,
            autoreset=was_over,
            episode_start=was_over | life_lost,
            observation=self._to_agent(observation),
            last_action=actions.astype(self._no_action.dtype),
        )

    def pop_episodes(self) -> list[Episode]:
        """Returns the games that ended since the last call, oldest first."""
        episodes, self._episodes = self._episodes, []
        return episodes

    def close(self) -> None:
        """Closes the environments and their processes."""
        close(self._env)

    def _count(self, reward: np.ndarray, autoreset: np.ndarray, info: Info) -> None:
        self._returns += reward
        self._lengths += ~autoreset
        for n in np.flatnonzero(self._game_over & ~info.get(CUT, self._none)):
            level = int(self.level_indices[n])
            infos = self._infos.of(info, int(n))
            game = Episode(float(self._returns[n]), int(self._lengths[n]), int(n), level, infos)
            self._episodes.append(game)
        self._returns[self._game_over] = 0
        self._lengths[self._game_over] = 0


@contextlib.contextmanager
def exits_are_errors() -> Iterator[None]:
    """Turns sys.exit() in a level's code into a RuntimeError, since it does not end the run."""
    try:
        yield
    except SystemExit as end:
        raise RuntimeError(f"the level ended its process: {plug_ins.raised(end)}") from end
