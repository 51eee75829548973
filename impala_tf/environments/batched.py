"""Converts the steps of a Gymnasium vector environment to those that `types.py` describes."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import SyncVectorEnv, VectorEnv

from impala_tf.environments import spaces
from impala_tf.environments.infos import OWN, Info, InfoMetrics
from impala_tf.environments.workers import InProcesses, close, ends_are_errors
from impala_tf.types import EnvOutput, Episode

LIFE_LOST = f"a life was lost{OWN}"
"""Key of `info`, bool [N]: a life was lost that ends an episode for learning but not the game."""


class BatchedEnvironment:
    """N environments, stepped together, which return `types.EnvOutput`.

    Observations have the layout "from the environment" of `observations.py`. They are the
    environment's own arrays, which the next step may overwrite: copy what must last. (ALE returns
    new arrays at every step.)

    Attributes:
      level_indices: int32 [N], the level of each environment, an index in EnvironmentSpec.levels.
    """

    restarts = 0  # `GuardedEnvironment` counts them

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        infos: InfoMetrics | None = None,
        cut_at: np.ndarray | None = None,
    ) -> None:
        """Takes ownership of an environment.

        Args:
          env: the environment, whose autoreset mode is NEXT_STEP.
          infos: reads --info_metrics at the end of episodes; None: there are none.
          cut_at: int [N], after how many steps an episode of each environment is cut, at least 1;
            see `cut_times`. It looks truncated, and its return does not count. An episode that ends
            or begins in that step is not cut.
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
        self._game_over = self._cut = self._none
        self._left = np.zeros(self._num_envs, np.int64) if cut_at is None else cut_at.copy()
        self._returns = np.zeros(self._num_envs, np.float64)
        self._lengths = np.zeros(self._num_envs, np.int64)

    def reset(self) -> EnvOutput:
        """Starts new games everywhere and returns their first step. Drops unfinished games."""
        with ends_are_errors(self._env):
            observation, _ = self._env.reset()
        self._game_over = self._cut = self._none
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
        with ends_are_errors(self._env):
            observation, reward, terminated, truncated, info = self._env.step(
                self._to_environment(actions)
            )
            if self._cut.any():  # the action after a cut is ignored, as after every end
                observation, _ = self._env.reset(options={"reset_mask": self._cut.copy()})
                terminated, truncated = terminated & ~self._cut, truncated & ~self._cut
        life_lost = info.get(LIFE_LOST, self._none)
        self._left -= 1
        self._cut = (self._left == 0) & ~(terminated | truncated | self._game_over)
        truncated = truncated | self._cut
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
        for n in np.flatnonzero(self._game_over & ~self._cut):
            level = int(self.level_indices[n])
            infos = self._infos.of(info, int(n))
            game = Episode(float(self._returns[n]), int(self._lengths[n]), int(n), level, infos)
            self._episodes.append(game)
        self._returns[self._game_over] = 0
        self._lengths[self._game_over] = 0


def cut_times(env: VectorEnv[Any, Any, Any], time_limit: int, seed: int) -> np.ndarray | None:
    """Returns when to cut an episode of each environment, so that later ones begin apart: int [N].

    Otherwise episodes that last until the time limit would always end together, and all unrolls of
    a batch would cover the same part of an episode (Bharthulwar et al., 2025, arXiv 2511.21011).
    None if there is no time limit, or if the environments cannot be reset individually.

    Args:
      env: the environments.
      time_limit: the time limit of an episode, in steps; 0: there is none.
      seed: the seed for drawing the times, each within a part of its own of the time limit.
    """
    # A level's own vector environment might ignore `reset_mask`.
    if not time_limit or type(env.unwrapped) not in (InProcesses, SyncVectorEnv):
        return None
    parts = np.arange(env.num_envs) + np.random.default_rng(seed).random(env.num_envs)
    times: np.ndarray = 1 + (parts * time_limit / env.num_envs).astype(np.int64)
    return times
