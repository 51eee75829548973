"""Levels and environments for tests."""

from __future__ import annotations

from typing import Any

import numpy as np

from impala_tf.config import EnvironmentConfig
from impala_tf.environments import suites
from impala_tf.environments.batched import BatchedEnvironment
from impala_tf.environments.guarded import GuardedEnvironment
from impala_tf.types import EnvOutput

WORLDS = "tests.helpers.worlds"
"""The module whose levels exist for tests only."""
BROKEN_WORLDS = "tests.helpers.broken_worlds"
"""The module whose levels break, hang or cannot be used."""


def level(name: str, **flags: Any) -> EnvironmentConfig:
    return EnvironmentConfig(level_name=name, **flags)


def pong(**flags: Any) -> EnvironmentConfig:
    return level("PongNoFrameskip-v4", **flags)


def breakout(**flags: Any) -> EnvironmentConfig:
    return level("ALE/Breakout-v5", **flags)


def environment_of(
    config: EnvironmentConfig, num_envs: int = 1, seed: int = 1
) -> BatchedEnvironment:
    return BatchedEnvironment(suites.make(config, num_envs, seed))


def guarded_level(config: EnvironmentConfig, num_envs: int) -> GuardedEnvironment:
    """Returns the environments as an actor has them."""
    return GuardedEnvironment(
        lambda attempt: environment_of(config, num_envs, attempt), [config.level_name], 60
    )


def actions(*values: int) -> np.ndarray:
    """Returns one action for each environment."""
    return np.array(values, np.int32)


def random_steps(environment: BatchedEnvironment, num_actions: int, count: int) -> list[EnvOutput]:
    """Returns the first step and `count` more; every call takes the same random actions."""
    rng = np.random.default_rng(0)
    steps = [environment.reset()]
    for _ in range(count):
        chosen = rng.integers(0, num_actions, len(steps[0].reward))
        steps.append(environment.step(chosen.astype(np.int32)))
    return steps
