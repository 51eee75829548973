"""Finds the suite that a level belongs to, and makes its environments."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from gymnasium.spaces import Space
from gymnasium.vector import VectorEnv, VectorWrapper

from impala_tf.config import ConfigError, EnvironmentConfig
from impala_tf.environments import atari, gym, procgen, retro, scores, spaces
from impala_tf.environments.batched import same_step
from impala_tf.environments.many_levels import ManyLevels
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


_LISTS = {"atari57": scores.ATARI57, "procgen16": scores.PROCGEN16}


def levels(env: EnvironmentConfig) -> tuple[EnvironmentConfig, ...]:
    """Returns the levels that --level_name lists, each with its flags.

    Several Atari games have all 18 actions in common.
    """
    listed = [name for part in env.level_name.split(",") for name in _LISTS.get(part, (part,))]
    several = len(listed) > 1
    return tuple(
        dataclasses.replace(
            env,
            level_name=name,
            full_action_space=env.full_action_space or (several and atari.owns(name)),
        )
        for name in listed
    )


def spec(env: EnvironmentConfig) -> EnvironmentSpec:
    """Describes a level, or what an agent sees that learns several. Quick, and without TensorFlow.

    Raises:
      ConfigError: there is no such level, a package that it needs is not installed, its spaces or
        its autoreset mode are not supported, or the levels differ in what agents see.
    """
    each = [_suite(level).spec(level) for level in levels(env)]
    return each[0] if len(each) == 1 else _union(env, each)


def modules(env: EnvironmentConfig) -> list[str]:
    """Returns the Python modules that are imported for the levels, because their names say so."""
    names = [level.level_name for level in levels(env) if _suite(level) is gym]
    return sorted({module for module in map(gym.module_of, names) if module})


def make(
    env: EnvironmentConfig,
    num_envs: int,
    seed: int | Callable[[], int],
    *,
    num_threads: int = 1,
    actor: int = 0,
    num_actors: int = 1,
) -> VectorEnv[Any, Any, Any]:
    """Returns N environments for a `BatchedEnvironment`.

    Several levels are assigned to actors round-robin; an actor with more than one level divides its
    environments among them.

    Args:
      env: the level, or the levels.
      num_envs: N.
      seed: of the first reset, 0 or more; a function is called only then.
      num_threads: of environments that run natively; one is best if there are as many actors as
        cores.
      actor, num_actors: who asks, and how many there are (0: unknown, so each has one level).

    Raises:
      ConfigError: as `spec`, or there are fewer environments than levels to divide them among.
    """
    everything = levels(env)
    if len(everything) == 1:
        return Seeded(_suite(env).make(everything[0], num_envs, num_threads), seed)
    mine = assigned(len(everything), actor, num_actors)
    if num_envs < len(mine):
        raise ConfigError(
            f"--envs_per_actor={num_envs}: an actor has {len(mine)} of the {len(everything)} "
            "levels; give at least as many environments, or more actors"
        )
    counts = [len(range(k, num_envs, len(mine))) for k in range(len(mine))]
    parts = [
        _suite(everything[index]).make(everything[index], count, num_threads)
        for index, count in zip(mine, counts, strict=True)
    ]
    return Seeded(ManyLevels(parts, mine, spec(env).actions), seed)


def make_one(
    env: EnvironmentConfig, index: int, num_envs: int, seed: int, *, num_threads: int = 1
) -> VectorEnv[Any, Any, Any]:
    """Returns N environments of one of the levels, with the actions of all; see `make`."""
    level = levels(env)[index]
    part = _suite(level).make(level, num_envs, num_threads)
    return Seeded(ManyLevels([part], [index], spec(env).actions), seed)


def assigned(num_levels: int, actor: int, num_actors: int) -> list[int]:
    """Returns the indices of an actor's levels; at least one."""
    if num_actors == 0 or num_actors >= num_levels:
        return [actor % num_levels]
    return list(range(actor % num_actors, num_levels, num_actors))


def action_space(env: EnvironmentConfig) -> Space[Any]:
    """Returns the actions of a level; of several levels, all choices, or the bounds of the first.

    Raises:
      ConfigError: as `spec`.
    """
    actions, first = spec(env).actions, levels(env)[0]
    if len(levels(env)) > 1 and actions.kind == "discrete":
        return spaces.agent_space(actions)
    environment = _suite(first).make(first, 1, 1)
    environment.close()
    found: Space[Any] = environment.single_action_space
    return found


def make_rendered(env: EnvironmentConfig, seed: int, index: int = 0) -> VectorEnv[Any, Any, Any]:
    """Returns one environment as `make` does, whose `render()` also returns (uint8 [H, W, 3],).

    `index`: which of several levels.

    Raises:
      ConfigError: as `spec`, or the level cannot be rendered.
    """
    everything = levels(env)
    rendered = _suite(everything[index]).make_rendered(everything[index])
    if len(everything) > 1:
        rendered = ManyLevels([rendered], [index], spec(env).actions)
    return Seeded(rendered, seed)


def recipe(env: EnvironmentConfig) -> dict[str, Any] | None:
    """Returns how to make one environment without this package, JSON-able.

    Returns:
      {"imports": modules to import first, "make": "module:function", "settings": its arguments}.
      None if the environment needs this package to look as agents see it.
    """
    return None if len(levels(env)) > 1 else _suite(env).recipe(env)


class Seeded(VectorWrapper[Any, Any, Any, Any, Any]):
    """Seeds the first reset; later resets continue the same random sequence."""

    def __init__(self, env: VectorEnv[Any, Any, Any], seed: int | Callable[[], int]) -> None:
        super().__init__(env)
        self.level_indices = getattr(env, "level_indices", np.zeros(env.num_envs, np.int32))
        self.same_step = same_step(env)
        self._seed: int | Callable[[], int] | None = seed

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Resets all environments."""
        first, self._seed = self._seed, None
        if seed is None and first is not None:
            seed = _spread(first() if callable(first) else first)
        return self.env.reset(seed=seed, options=options)


def _spread(seed: int) -> int:
    """Returns a seed that is far from those of neighbouring ones.

    Vector environments count up from one seed, so neighbouring seeds would give nearly the same
    environments. It is below 2**30 because ALE keeps them in a C int.
    """
    return int(np.random.SeedSequence(seed).generate_state(1)[0] >> 2)


def _union(env: EnvironmentConfig, each: Sequence[EnvironmentSpec]) -> EnvironmentSpec:
    """Returns the spec of an agent that learns all levels."""
    first = each[0]
    for other in each[1:]:
        for name in ("kind", "observation", "stacked_frames", "frames_per_step"):
            if getattr(other, name) != getattr(first, name):
                raise ConfigError(
                    f"--level_name: {first.level_name} and {other.level_name} differ in their "
                    f"{name.replace('_', ' ')}, so one agent cannot learn both"
                )
        if other.actions != first.actions and {other.actions.kind, first.actions.kind} != {
            "discrete"
        }:
            raise ConfigError(
                f"--level_name: {first.level_name} has {first.actions} and {other.level_name} has "
                f"{other.actions}, so one agent cannot learn both"
            )
    actions = max((spec.actions for spec in each), key=lambda actions: actions.sizes)
    return first._replace(
        level_name=env.level_name,
        actions=actions,
        protocol=f"{len(each)} levels, {actions}; the first: {first.protocol}",
        tasks=tuple(spec.level_name for spec in each),
    )


def _suite(env: EnvironmentConfig) -> Suite:
    return next(suite for suite in SUITES if suite.owns(env.level_name))
