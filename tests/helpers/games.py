"""Levels and environments for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

from impala_tf.config import EnvironmentConfig
from impala_tf.environments import suites
from impala_tf.environments.batched import BatchedEnvironment
from impala_tf.environments.guard import Guard
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
    return BatchedEnvironment(lambda: vector_of(config, num_envs), seed)


def vector_of(
    config: EnvironmentConfig, num_envs: int = 1, indices: Sequence[int] = (0,)
) -> VectorEnv[Any, Any, Any]:
    return suites.make(config, suites.spec(config), num_envs, indices=indices)


def rendered(config: EnvironmentConfig, seed: int) -> suites.RenderedGame:
    return suites.RenderedGame(config, suites.spec(config), seed)


def batched(vector: VectorEnv[Any, Any, Any], seed: int = 1) -> BatchedEnvironment:
    return BatchedEnvironment(lambda: vector, seed)


def guarded_level(config: EnvironmentConfig, num_envs: int) -> BatchedEnvironment:
    """Returns the environments as an actor has them."""
    spec = suites.spec(config)
    guard = Guard([config.level_name], 60, lambda: False, lambda line: None)
    return BatchedEnvironment(
        lambda: suites.make(config, spec, num_envs), lambda restarts: restarts, guard=guard
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
