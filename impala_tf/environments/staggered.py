"""Staggers the episodes of environments with a time limit, so that they do not end together."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv, VectorWrapper

from impala_tf.environments.batched import CUT

_RESETS_SOME = (AsyncVectorEnv, SyncVectorEnv)
"""The classes that take `reset_mask`. A level's own vector environment might ignore it."""


def staggered(
    env: VectorEnv[Any, Any, Any], time_limit: int, seed: int
) -> VectorEnv[Any, Any, Any]:
    """Returns N environments as `Staggered`, each cut at a different time within the time limit.

    Without a time limit, or if they cannot be reset individually, they are returned unchanged.

    Args:
      env: the environments.
      time_limit: the time limit of an episode, in steps; 0: there is none.
      seed: the seed for drawing the times.
    """
    if not time_limit or type(env.unwrapped) not in _RESETS_SOME:
        return env
    parts = np.arange(env.num_envs) + np.random.default_rng(seed).random(env.num_envs)
    return Staggered(env, 1 + (parts * time_limit / env.num_envs).astype(np.int64))


class Staggered(VectorWrapper[Any, Any, Any, Any, Any]):
    """Cuts one episode of each environment, so that later ones begin at different times.

    Otherwise episodes that last until the time limit would always end together, and all unrolls of
    a batch would cover the same part of an episode (Bharthulwar et al., 2025, arXiv 2511.21011). A
    cut episode looks truncated, and `info[CUT]`, bool [N], marks it, because it does not count.

    Args:
      env: N environments, which can be reset individually.
      cut_at: int [N], after how many steps each environment's episode is cut, at least 1. An
        episode that ends or begins in that step is not cut.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any], cut_at: np.ndarray) -> None:
        super().__init__(env)
        self._left = cut_at.copy()
        self._was_cut = self._was_over = np.zeros(env.num_envs, np.bool_)

    def step(self, actions: np.ndarray) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Steps all environments, and resets those that were cut in the last step."""
        observation, reward, terminated, truncated, info = self.env.step(actions)
        if self._left.max() < 0:
            return observation, reward, terminated, truncated, info
        if (cut := self._was_cut).any():
            # The action after a cut is ignored, as after the end of every episode.
            observation, _ = self.env.reset(options={"reset_mask": cut.copy()})
            reward = np.where(cut, 0, reward)
            terminated, truncated = terminated & ~cut, truncated & ~cut
        self._left -= 1
        over = terminated | truncated
        self._was_cut = (self._left == 0) & ~over & ~self._was_over
        self._was_over = over | self._was_cut
        info[CUT] = self._was_cut
        return observation, reward, terminated, truncated | self._was_cut, info
