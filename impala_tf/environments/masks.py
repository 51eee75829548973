"""Action masks: which of its actions a level allows at the moment.

A mask is a vector with a number for each action of a `Discrete` space, or for each choice of each
part of a `MultiDiscrete` space, one after the other; 0: not allowed. It is the part ACTION_MASK of
the observation, as in RLlib and PettingZoo, or `info["action_mask"]`, as in Gymnasium's Taxi, which
`MaskInObservation` makes such a part.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict

from impala_tf.environments import spaces
from impala_tf.environments.observations import WHOLE
from impala_tf.types import ACTION_MASK, ActionSpec, EnvironmentSpec, ObservationSpec


class MaskInObservation(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Adds `info["action_mask"]` to the observation; where it is missing, all is allowed.

    Args:
      env: the environment, whose actions are not continuous.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        size = sum(spaces.action_spec(env.action_space).sizes)
        self._all = np.ones(size, np.float32)
        own = env.observation_space
        self._has_parts = isinstance(own, Dict)
        mask = Box(0.0, 1.0, (size,), np.float32)
        self.observation_space = Dict(
            {**(own.spaces if isinstance(own, Dict) else {WHOLE: own}), ACTION_MASK: mask}
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Resets the environment; see `gymnasium.Env.reset`."""
        observation, info = self.env.reset(seed=seed, options=options)
        return self._with_mask(observation, info), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Takes an action; see `gymnasium.Env.step`."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._with_mask(observation, info), reward, terminated, truncated, info

    def _with_mask(self, observation: Any, info: Mapping[str, Any]) -> dict[str, Any]:
        parts = observation if self._has_parts else {WHOLE: observation}
        mask = info.get(ACTION_MASK, self._all)
        choices = mask if isinstance(mask, tuple) else (mask,)  # as MultiDiscrete.sample takes it
        flat = np.concatenate([np.ravel(each) for each in choices]).astype(np.float32)
        return {**parts, ACTION_MASK: flat}


def shown(env: gymnasium.Env[Any, Any], spec: EnvironmentSpec) -> gymnasium.Env[Any, Any]:
    """Returns an environment whose observations have the action masks that its level's spec has."""
    own = env.observation_space
    has_mask = isinstance(own, Dict) and ACTION_MASK in own.spaces
    return MaskInObservation(env) if spec.masks_actions and not has_mask else env


def check(observation: ObservationSpec | dict[str, ObservationSpec], actions: ActionSpec) -> None:
    """Raises ValueError if the observation has an action mask that does not fit the actions."""
    if not isinstance(observation, dict) or ACTION_MASK not in observation:
        return
    if actions.kind == "continuous":
        return  # it is a part like others
    seen = observation[ACTION_MASK]
    if seen.kind != "vector" or seen.shape != (sum(actions.sizes),):
        raise ValueError(
            f"has an {ACTION_MASK} that is {seen.kind} {'x'.join(map(str, seen.shape))}, but"
            f" {actions}; a mask is a vector with one number for each action of a Discrete space"
        )
