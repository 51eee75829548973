"""Finds the suite that a level belongs to, and makes its environments."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from gymnasium.vector import VectorEnv, VectorWrapper

from impala_tf.config import EnvironmentConfig
from impala_tf.environments import atari, gym, procgen, retro
from impala_tf.types import EnvironmentSpec


class Suite(Protocol):
    """The functions that each suite's module has."""

    def owns(self, level_name: str) -> bool:
        """Tells whether the level belongs to this suite."""

    def spec(self, env: EnvironmentConfig) -> EnvironmentSpec:
        """Describes the level."""

    def make(
        self, env: EnvironmentConfig, num_envs: int, num_threads: int
    ) -> VectorEnv[Any, Any, Any]:
        """Returns N environments, their observation spaces in the `simple` form of `spaces`."""

    def make_rendered(self, env: EnvironmentConfig) -> VectorEnv[Any, Any, Any]:
        """Returns one environment whose `render()` returns (uint8 [H, W, 3],)."""

    def recipe(self, env: EnvironmentConfig) -> dict[str, Any] | None:
        """Returns how to make one environment without this package; see `suites.recipe`."""


# The first suite that owns a level takes it; gym owns every level.
SUITES: tuple[Suite, ...] = (atari, procgen, retro, gym)


def spec(env: EnvironmentConfig) -> EnvironmentSpec:
    """Describes a level. Quick, and without TensorFlow.

    Raises:
      ConfigError: there is no such level, a package that it needs is not installed, or its spaces
        or its autoreset mode are not supported.
    """
    return _suite(env).spec(env)


def make(
    env: EnvironmentConfig, num_envs: int, seed: int, *, num_threads: int = 1
) -> VectorEnv[Any, Any, Any]:
    """Returns N environments for a `BatchedEnvironment`.

    Their first reset is seeded with `seed` (0 or more). `num_threads` is for environments that run
    natively; one is best if there are as many actors as cores.

    Raises:
      ConfigError: as `spec`.
    """
    return Seeded(_suite(env).make(env, num_envs, num_threads), seed)


def make_rendered(env: EnvironmentConfig, seed: int) -> VectorEnv[Any, Any, Any]:
    """Returns one environment as `make` does, whose `render()` also returns (uint8 [H, W, 3],).

    Raises:
      ConfigError: as `spec`, or the level cannot be rendered.
    """
    return Seeded(_suite(env).make_rendered(env), seed)


def recipe(env: EnvironmentConfig) -> dict[str, Any] | None:
    """Returns how to make one environment without this package, JSON-able.

    Returns:
      {"imports": modules to import first, "make": "module:function", "settings": its arguments}.
      None if the environment needs this package to look as agents see it.
    """
    return _suite(env).recipe(env)


class Seeded(VectorWrapper[Any, Any, Any, Any, Any]):
    """Seeds the first reset; later resets continue the same random sequence."""

    def __init__(self, env: VectorEnv[Any, Any, Any], seed: int) -> None:
        super().__init__(env)
        # Vector environments count up from one seed, so neighbouring seeds would give nearly the
        # same environments: spread them out, below 2**30 because ALE keeps them in a C int.
        self._seed: int | None = int(np.random.SeedSequence(seed).generate_state(1)[0] >> 2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Resets all environments."""
        first, self._seed = self._seed, None
        return self.env.reset(seed=first if seed is None else seed, options=options)


def _suite(env: EnvironmentConfig) -> Suite:
    return next(suite for suite in SUITES if suite.owns(env.level_name))
