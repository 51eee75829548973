"""Levels say in their observation or in `info` which actions they allow."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete

from impala_tf.config import ConfigError
from impala_tf.environments import suites
from tests.helpers.games import WORLDS, environment_of, level


@pytest.mark.parametrize("name", ["Locked-v0", "LockedInfo-v0"])
def test_a_mask_is_a_part_of_the_observation(name: str) -> None:
    """Wherever the level has it."""
    env = level(f"{WORLDS}:{name}")
    assert suites.spec(env).masks_actions
    environment = environment_of(env, num_envs=3)
    output = environment.reset()
    for _ in range(25):  # with episode ends
        mask = output.observation["action_mask"]
        assert mask.dtype == np.float32 and (mask.sum(axis=-1) == 2).all()
        np.testing.assert_array_equal(mask, output.observation["observation"])
        output = environment.step(mask.argmax(axis=-1).astype(np.int32))
    assert sum(episode.episode_return for episode in environment.pop_episodes()) == 60
    environment.close()


class Odd(gymnasium.Env[Any, Any]):
    def __init__(self, size: int = 4, actions: str = "choices", has_more: bool = True) -> None:
        parts: dict[str, Any] = {"action_mask": Box(0, 1, (size,), np.int8)}
        if has_more:
            parts["x"] = Box(-1, 1, (2,))
        self.observation_space = Dict(parts)
        spaces: dict[str, Any] = {"numbers": Box(-1, 1, (2,)), "choices": MultiDiscrete([3, 2])}
        self.action_space = spaces.get(actions, Discrete(4))

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        super().reset(**kwargs)
        return self.observation_space.sample(), {}


@pytest.mark.parametrize("arguments", ['{"size": 4}', '{"actions": "one", "has_more": false}'])
def test_a_mask_that_does_not_fit_the_actions_is_refused(arguments: str) -> None:
    with pytest.raises(ConfigError, match="action_mask"):
        suites.spec(level(f"{__name__}:Odd", level_kwargs=arguments))


def test_choices_have_a_number_each_and_continuous_actions_no_mask() -> None:
    assert suites.spec(level(f"{__name__}:Odd", level_kwargs='{"size": 5}')).masks_actions
    numbers = suites.spec(level(f"{__name__}:Odd", level_kwargs='{"actions": "numbers"}'))
    assert not numbers.masks_actions
