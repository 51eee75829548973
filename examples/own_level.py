"""A level of your own: a class that makes a Gymnasium environment, with arguments.

    cd examples
    impala train --level_name=own_level:Corridor --level_kwargs='{"length": 8}' \
        --level_wrappers=own_level:Impatient --total_environment_frames=200000 \
        --info_metrics=wrong_steps --logdir=../runs/corridor
    impala test --logdir=../runs/corridor --trust_level_module

The best return is 1 - 0.01 * (length - 1). The column info/wrong_steps of metrics.csv
falls to 0.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np


class Corridor(gymnasium.Env[np.ndarray, int]):
    """Walk from the left end of a corridor to the right one: 0 is a step to the left, 1 right."""

    def __init__(self, length: int = 5, reward: float = 1.0) -> None:
        if length < 2:
            raise ValueError("length must be 2 or more")
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (length,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self._length, self._reward = length, reward
        self._position = self._wrong_steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        """Goes back to the left end."""
        super().reset(seed=seed)
        self._position = self._wrong_steps = 0
        return self._observation(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        """Takes a step."""
        self._position = max(0, self._position + (1 if action == 1 else -1))
        self._wrong_steps += action != 1
        arrived = self._position == self._length - 1
        info = {"wrong_steps": self._wrong_steps}
        return self._observation(), self._reward * arrived, arrived, False, info

    def _observation(self) -> np.ndarray:
        return np.eye(self._length, dtype=np.float32)[self._position]


class Impatient(gymnasium.Wrapper[np.ndarray, int, np.ndarray, int]):
    """Takes 0.01 off the reward of every step, and ends an episode after 100 steps."""

    def __init__(self, env: gymnasium.Env[np.ndarray, int]) -> None:
        super().__init__(gymnasium.wrappers.TimeLimit(env, 100))

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        """Takes a step."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, float(reward) - 0.01, terminated, truncated, info
