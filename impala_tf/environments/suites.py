"""Finds the suite that a level belongs to, and makes its environments."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv

from impala_tf.config import ConfigError, EnvironmentConfig, plug_ins
from impala_tf.config.plug_ins import level_wrappers
from impala_tf.environments import gym, masks, single, spaces
from impala_tf.environments.atari import Atari
from impala_tf.environments.batched import BatchedEnvironment
from impala_tf.environments.many_levels import ManyLevels
from impala_tf.environments.procgen import Procgen
from impala_tf.environments.retro import Retro
from impala_tf.environments.simplify import LevelError
from impala_tf.environments.suite import Suite, explain_import
from impala_tf.environments.workers import close
from impala_tf.types import EnvironmentSpec, ObservationSpec

# A level belongs to the first suite that owns it. The last one owns every level.
SUITES: tuple[Suite, ...] = (Atari(), Procgen(), Retro(), gym.Gym())


def suite_of(env: EnvironmentConfig) -> Suite:
    """Returns the suite of a single level."""
    return next(suite for suite in SUITES if suite.owns(env.level_name))


def levels(env: EnvironmentConfig) -> tuple[EnvironmentConfig, ...]:
    """Returns the levels that --level_name lists, each with its flags."""
    lists = {name: members for suite in SUITES for name, members in suite.lists.items()}
    parts = [part.strip() for part in env.level_name.split(",")]
    names = [name for part in parts for name in lists.get(part, (part,))]
    listed = tuple(dataclasses.replace(env, level_name=name) for name in names)
    if len(listed) == 1:
        return listed
    # So all Atari games have the same 18 actions.
    return tuple(
        dataclasses.replace(level, full_action_space=True)
        if isinstance(suite_of(level), Atari)
        else level
        for level in listed
    )


def spec(env: EnvironmentConfig) -> EnvironmentSpec:
    """Describes a level, or several that one agent learns. May make them. Without TensorFlow.

    Raises:
      ConfigError: a level cannot be used, or one agent cannot learn all of them.
    """
    listed, flag = levels(env), f"--level_name={env.level_name}"
    names = collections.Counter(level.level_name for level in listed)
    name, count = names.most_common(1)[0]
    if count > 1:
        raise ConfigError(f"{flag}: has {name} {count} times; name each level once")
    for level in listed:
        for name in ("level_kwargs", "level_wrappers"):
            if getattr(env, name) and not isinstance(suite_of(level), gym.Gym):
                raise ConfigError(
                    f"--{name}: {level.level_name} runs in an emulator or engine of its own, which"
                    " takes none; leave the flag out (its settings are flags: see --help_all)"
                )
    specs = [suite_of(level).spec(level) for level in listed]
    return specs[0] if len(specs) == 1 else _union(env, specs)


def modules(env: EnvironmentConfig) -> list[str]:
    """Returns the Python modules that flags name and that the levels import."""
    names = [level.level_name for level in levels(env) if isinstance(suite_of(level), gym.Gym)]
    named = {single.module_of(name) for name in names}
    wrappers = {name.rpartition(":")[0] for name, _ in level_wrappers(env.level_wrappers)}
    return sorted((named | wrappers) - {""})


def unseen(env: EnvironmentConfig, index: int = 0) -> EnvironmentConfig | None:
    """Returns flags that make level `index` play generated levels that training does not use.

    None if its levels are not generated, or training uses all of them.
    """
    level = levels(env)[index]
    flags = suite_of(level).unseen(level)
    return None if flags is None else dataclasses.replace(flags, level_name=env.level_name)


def normalized(level: EnvironmentConfig, score: float) -> float | None:
    """Returns a normalised return: the level's published range becomes 0 to 1. None: none is known.

    Atari: 0 is a random agent, 1 a human tester. Procgen: R_min and R_max of the distribution mode.
    """
    score_range = suite_of(level).score_range(level)
    if score_range is None:
        return None
    zero, one = score_range
    return (score - zero) / (one - zero)


def make(
    env: EnvironmentConfig,
    spec: EnvironmentSpec,
    num_envs: int,
    *,
    num_threads: int = 1,
    indices: Sequence[int] = (0,),
) -> VectorEnv[Any, Any, Any]:
    """Returns N environments for a `BatchedEnvironment`.

    Args:
      env: the flags of the level or levels.
      spec: theirs.
      num_envs: N.
      num_threads: threads of native environments; 1 is best with as many actors as cores.
      indices: which levels to make, if there are several; see `assigned`. They divide the
        environments, and take the actions of all levels.

    Raises:
      ConfigError: as `spec` does, or there are fewer environments than levels of the actor.
    """
    listed, count = levels(env), len(indices)
    if num_envs < count:
        raise ConfigError(
            f"--envs_per_actor={num_envs}: an actor has {count} of the {len(listed)} "
            "levels; give at least as many environments, or more actors"
        )
    parts = [
        suite_of(level).make(level, spec.of_level(index), size, num_threads)
        for k, index in enumerate(indices)
        for level, size in [(listed[index], len(range(k, num_envs, count)))]
    ]
    return parts[0] if len(listed) == 1 else ManyLevels(parts, indices, spec.actions)


def assigned(count: int, actor: int, num_actors: int) -> list[int]:
    """Returns the indices of an actor's levels, at least one of `count`: round-robin.

    Args:
      count: the number of levels.
      actor: the actor's index.
      num_actors: the number of actors; 0: unknown, so each has one level.
    """
    if num_actors == 0 or num_actors >= count:
        return [actor % count]
    return list(range(actor % num_actors, count, num_actors))


class Level(NamedTuple):
    """One environment with a level's own observations and actions."""

    env: gymnasium.Env[Any, Any]
    repeats: int
    """How often an agent's action is repeated."""
    to_agent: Callable[[Any], Any]
    """Converts an observation to what an agent sees, with N = 1."""


def make_single(env: EnvironmentConfig, spec: EnvironmentSpec, seed: int) -> Level:
    """Returns one environment of one level.

    Args:
      env: the level's flags.
      spec: its spec.
      seed: the seed of the first reset of an emulator or a vector environment. Other environments
        are seeded by their `reset`.

    Raises:
      ConfigError: as `spec` does.
    """
    if isinstance(suite_of(env), gym.Gym) and not gym.has_only_vectors(env.level_name):
        own = masks.shown(single.make(env), spec)
        _, convert = spaces.view(own.observation_space, spec.offsets)
        return Level(own, env.num_action_repeats, lambda value: _batch(spec, convert(value)))
    return Level(Single(make(env, spec, 1), seed), 1, lambda value: _batch(spec, value))


def _batch(spec: EnvironmentSpec, observation: Any) -> Any:
    def batch(value: Any, part: ObservationSpec) -> np.ndarray:
        return np.asarray(value, part.dtype)[None]

    if isinstance(spec.observation, dict):
        return {name: batch(observation[name], part) for name, part in spec.observation.items()}
    return batch(observation, spec.observation)


class Single(gymnasium.Env[Any, Any]):
    """The only environment of a vector environment whose autoreset mode is NEXT_STEP."""

    def __init__(self, vector: VectorEnv[Any, Any, Any], seed: int) -> None:
        self._vector = vector
        self._seed: int | None = seed
        self.observation_space = vector.single_observation_space
        self.action_space = vector.single_action_space
        self.metadata = vector.metadata

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Resets the environment; see `gymnasium.Env.reset`."""
        first, self._seed = self._seed, None
        observation, info = self._vector.reset(seed=first if seed is None else seed)
        return _first(observation), _first(info)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Takes an action; see `gymnasium.Env.step`."""
        observation, reward, terminated, truncated, info = self._vector.step(np.array([action]))
        ends = bool(terminated[0]), bool(truncated[0])
        return _first(observation), float(reward[0]), *ends, _first(info)

    def close(self) -> None:
        """Closes the environment."""
        close(self._vector)


def _first(batch: Any) -> Any:
    if isinstance(batch, dict):
        return {name: _first(part) for name, part in batch.items()}
    return batch[0]


class RenderedGame:
    """An environment to play, and its rendered picture.

    Args:
      env: the flags of the level or levels.
      spec: theirs.
      seed: the seed of the first reset.
      index: the index of the level, if there are several.

    Attributes:
      environment: the environment, with N = 1. On Atari, it is the same game that `make` makes from
        the same seed.
      fps: agent steps per second at the speed at which people play.

    Raises:
      ConfigError: the level cannot be made (see `spec`) or cannot be rendered.
    """

    def __init__(
        self, env: EnvironmentConfig, spec: EnvironmentSpec, seed: int, index: int = 0
    ) -> None:
        level = levels(env)[index]
        self._flag = f"--level_name={level.level_name}"
        vector = suite_of(level).make_rendered(level, spec.of_level(index))
        if spec.parts:
            vector = ManyLevels([vector], [index], spec.actions)
        self._vector = vector
        self.environment = BatchedEnvironment(lambda: vector, seed)
        self.fps = float(vector.metadata.get("render_fps") or 30) / spec.frames_per_step

    def check(self) -> None:
        """Resets and renders; raises ConfigError if that fails."""
        with self._errors_named("reset"):
            self.environment.reset()
        self.frame()

    def frame(self) -> np.ndarray:
        """Returns the picture of the last step, uint8 [H, W, 3].

        Raises:
          ConfigError: a package that renders the level is missing, or the result is not a picture.
        """
        with self._errors_named("render"):
            (picture,) = self._vector.render() or ()
        pixels = np.asarray(picture)
        if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3:
            got = "None" if picture is None else f"{pixels.dtype} {list(pixels.shape)}"
            raise ConfigError(
                f"{self._flag}: its render() must return a picture, uint8 [H, W, 3], for render"
                f" mode rgb_array, but returned {got}"
            )
        return pixels

    def close(self) -> None:
        """Closes the environment."""
        self.environment.close()

    @contextlib.contextmanager
    def _errors_named(self, method: str) -> Iterator[None]:
        try:
            yield
        except LevelError as error:
            raise ConfigError(f"--level_name={error}") from error
        except (Exception, SystemExit) as error:
            line = f"{self._flag}: its {method}() raised {plug_ins.raised(error)}"
            raise ConfigError(explain_import(self._flag, error) or line) from error


def check_rendering(env: EnvironmentConfig, spec: EnvironmentSpec) -> None:
    """Renders the first step of each level.

    Raises:
      ConfigError: a level cannot be made, reset or rendered, or its render() does not return a
        picture.
    """
    for index in range(len(spec.levels)):
        with contextlib.closing(RenderedGame(env, spec, seed=0, index=index)) as game:
            game.check()


def _union(env: EnvironmentConfig, specs: Sequence[EnvironmentSpec]) -> EnvironmentSpec:
    """Returns the spec of an agent that learns all levels."""
    first = specs[0]
    for other in specs[1:]:
        differing = [
            name.replace("_", " ")
            for name in ("kind", "observation", "stacked_frames", "frames_per_step")
            if getattr(other, name) != getattr(first, name)
        ]
        both = f"--level_name: {first.level_name} and {other.level_name}"
        if differing:
            problem = f"differ in their {differing[0]}"
            raise ConfigError(f"{both} {problem}, so one agent cannot learn both")
        kinds = {other.actions.kind, first.actions.kind}
        if other.actions != first.actions and kinds != {"discrete"}:
            problem = f"have {first.actions} and {other.actions}"
            raise ConfigError(f"{both} {problem}, so one agent cannot learn both")
    actions = max((spec.actions for spec in specs), key=lambda actions: actions.sizes)
    return first._replace(
        level_name=env.level_name,
        actions=actions,
        protocol=f"{len(specs)} levels, {actions}; the first: {first.protocol}",
        tasks=tuple(spec.level_name for spec in specs),
        time_limit=0,
        renders=all(spec.renders for spec in specs),
        offsets={},
        parts=tuple(specs),
    )
