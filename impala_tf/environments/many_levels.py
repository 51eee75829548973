"""Environments of several levels behind one vector environment."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tree
from gymnasium.spaces import Discrete
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space

from impala_tf.environments import spaces
from impala_tf.environments.batched import LIFE_LOST, close
from impala_tf.environments.infos import PARTS
from impala_tf.types import ActionSpec

# The distance between the seeds of two parts, so that no two environments share a seed.
_SEEDS_APART = 10_007


class ManyLevels(VectorEnv[Any, Any, Any]):
    """Steps the environments of all its parts, one part after another.

    The agent acts in the union of the levels' actions. In a level with only n actions, action a
    means a modulo n. Continuous actions are scaled to each level's bounds.

    Args:
      parts: at least one, with equal observations.
      levels: the index of each part's level.
      actions: the union of the levels' actions.
    """

    def __init__(
        self, parts: Sequence[VectorEnv[Any, Any, Any]], levels: Sequence[int], actions: ActionSpec
    ) -> None:
        self._parts = list(parts)
        self._counts = [part.num_envs for part in self._parts]
        self._ends = np.cumsum(self._counts)
        self.num_envs = int(self._ends[-1])
        self.level_indices = np.repeat(np.array(levels, np.int32), self._counts)
        self.metadata = self._parts[0].metadata
        self.single_observation_space = self._parts[0].single_observation_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.single_action_space = spaces.agent_space(actions)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._to_level = [_action_converter(part) for part in self._parts]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Resets all environments."""
        seeds = [None if seed is None else seed + k * _SEEDS_APART for k in range(len(self._parts))]
        resets = [
            part.reset(seed=seed, options=options)
            for part, seed in zip(self._parts, seeds, strict=True)
        ]
        return _concatenate([observation for observation, _ in resets]), {}

    def step(self, actions: np.ndarray) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Steps all environments."""
        steps = [
            part.step(to_level(actions[end - count : end]))
            for part, to_level, count, end in zip(
                self._parts, self._to_level, self._counts, self._ends, strict=True
            )
        ]
        *arrays, infos = zip(*steps, strict=True)
        lost = [
            info.get(LIFE_LOST, np.zeros(count, np.bool_))
            for info, count in zip(infos, self._counts, strict=True)
        ]
        parts = list(zip(self._counts, infos, strict=True))
        observation, reward, terminated, truncated = map(_concatenate, arrays)
        info = {LIFE_LOST: np.concatenate(lost), PARTS: parts}
        return observation, reward, terminated, truncated, info

    def render(self) -> Any:
        """Renders the first part."""
        return self._parts[0].render()

    def close_extras(self, **kwargs: Any) -> None:
        """Closes all environments."""
        with contextlib.ExitStack() as stack:  # if one raises, the others are still closed
            for part in self._parts:
                stack.callback(close, part)


def _concatenate(parts: Sequence[Any]) -> Any:
    return tree.map_structure(lambda *arrays: np.concatenate(arrays), *parts)


def _action_converter(part: VectorEnv[Any, Any, Any]) -> Callable[[np.ndarray], np.ndarray]:
    """Returns the conversion of the agent's actions to those of a part's level."""
    space = part.single_action_space
    convert = spaces.action_converter(space)
    if isinstance(space, Discrete):
        return lambda actions: convert(actions % space.n)
    return convert
