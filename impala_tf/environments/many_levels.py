"""Environments of several levels behind one vector environment."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
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
      parts: at least one; agents see observations of the same kind and shape in all of them.
      levels: the index of each part's level.
      actions: the union of the levels' actions.
    """

    def __init__(
        self, parts: Sequence[VectorEnv[Any, Any, Any]], levels: Sequence[int], actions: ActionSpec
    ) -> None:
        self._parts = list(parts)
        counts = [part.num_envs for part in self._parts]
        self.num_envs = sum(counts)
        self.level_indices = np.repeat(np.array(levels, np.int32), counts)
        ends = np.cumsum(counts)
        self._slices = [
            slice(int(e) - count, int(e)) for e, count in zip(ends, counts, strict=True)
        ]
        first = self._parts[0]
        self.metadata = first.metadata
        self.single_observation_space = spaces.seen(first.single_observation_space)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.single_action_space = spaces.agent_space(actions)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._to_level = [_to_level(part) for part in self._parts]
        # Observations that look the same to agents may differ in the shapes of their arrays.
        self._to_agent = [
            spaces.observation_converter(part.single_observation_space) for part in self._parts
        ]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Resets all environments."""
        observations = [
            part.reset(seed=None if seed is None else seed + k * _SEEDS_APART, options=options)[0]
            for k, part in enumerate(self._parts)
        ]
        return self._joined(observations), {}

    def step(self, actions: np.ndarray) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Steps all environments."""
        steps = [
            part.step(to_level(actions[rows]))
            for part, to_level, rows in zip(self._parts, self._to_level, self._slices, strict=True)
        ]
        observations, rewards, terminated, truncated, infos = zip(*steps, strict=True)
        lost = [
            info.get(LIFE_LOST, np.zeros(part.num_envs, np.bool_))
            for info, part in zip(infos, self._parts, strict=True)
        ]
        counts = [part.num_envs for part in self._parts]
        return (
            self._joined(observations),
            np.concatenate(rewards),
            np.concatenate(terminated),
            np.concatenate(truncated),
            {LIFE_LOST: np.concatenate(lost), PARTS: list(zip(counts, infos, strict=True))},
        )

    def _joined(self, observations: Sequence[Any]) -> Any:
        parts = [convert(part) for convert, part in zip(self._to_agent, observations, strict=True)]
        if isinstance(parts[0], dict):
            return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        return np.concatenate(parts)

    def render(self) -> Any:
        """Renders the first part."""
        return self._parts[0].render()

    def close_extras(self, **kwargs: Any) -> None:
        """Closes all environments."""
        with contextlib.ExitStack() as stack:  # if one raises, the others are still closed
            for part in self._parts:
                stack.callback(close, part)


def _to_level(part: VectorEnv[Any, Any, Any]) -> Callable[[np.ndarray], np.ndarray]:
    """Returns the conversion of the agent's actions to those of a part's level."""
    space = part.single_action_space
    convert = spaces.action_converter(space)
    if isinstance(space, Discrete):
        return lambda actions: convert(actions % space.n)
    return convert
