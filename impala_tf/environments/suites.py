"""Finds the suite that a level belongs to, and makes its environments."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import math
import numbers
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv, VectorWrapper

from impala_tf.config import ConfigError, EnvironmentConfig, plug_ins
from impala_tf.config.plug_ins import level_wrappers
from impala_tf.environments import atari, gym, procgen, registered, retro
from impala_tf.environments.batched import BatchedEnvironment
from impala_tf.environments.many_levels import ManyLevels
from impala_tf.environments.results import LevelError
from impala_tf.environments.suite import Suite, explained
from impala_tf.environments.workers import close
from impala_tf.types import EnvironmentSpec

# A level belongs to the first suite that owns it. The last one owns every level.
SUITES = (atari.SUITE, procgen.SUITE, retro.SUITE, gym.SUITE)


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
        if suite_of(level) is atari.SUITE
        else level
        for level in listed
    )


def spec(env: EnvironmentConfig) -> EnvironmentSpec:
    """Describes a level, or several that one agent learns. Fast, and without TensorFlow.

    Raises:
      ConfigError: a level does not exist, needs a package that is not installed, has unsupported
        spaces or an unsupported autoreset mode, or is named twice; or the levels differ in what
        agents see.
    """
    _check_names(env)
    _check_own(env)
    specs = [suite_of(level).spec(level) for level in levels(env)]
    return specs[0] if len(specs) == 1 else _union(env, specs)


def _check_names(env: EnvironmentConfig) -> None:
    """Raises ConfigError if one of several names is empty, or a level is named twice."""
    flag, names = f"--level_name={env.level_name}", [level.level_name for level in levels(env)]
    if len(names) > 1 and "" in names:
        raise ConfigError(f"{flag}: one of its names is empty; leave out the comma")
    for name, count in collections.Counter(names).items():
        if count > 1:
            raise ConfigError(f"{flag}: has {name} {count} times; name each level once")


def _check_own(env: EnvironmentConfig) -> None:
    """Raises ConfigError if arguments or wrappers are given, but a level's suite takes none."""
    for level in levels(env):
        for flag in ("level_kwargs", "level_wrappers"):
            if getattr(env, flag) and suite_of(level) is not gym.SUITE:
                raise ConfigError(
                    f"--{flag}: {level.level_name} runs in an emulator or engine of its own, which"
                    " takes none; leave the flag out (its settings are flags: see --help_all)"
                )


def modules(env: EnvironmentConfig) -> list[str]:
    """Returns the Python modules that flags name and that the levels import."""
    names = [level.level_name for level in levels(env) if suite_of(level) is gym.SUITE]
    named = {registered.module_of(name) for name in names}
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
    num_envs: int,
    seed: int | Callable[[], int],
    *,
    num_threads: int = 1,
    actor: int = 0,
    num_actors: int = 1,
    index: int | None = None,
) -> VectorEnv[Any, Any, Any]:
    """Returns N environments for a `BatchedEnvironment`.

    Several levels are assigned to actors round-robin; an actor with more than one level divides its
    environments among them.

    Args:
      env: the flags of the level or levels.
      num_envs: N.
      seed: the seed of the first reset, at least 0; a function is called at that reset.
      num_threads: threads of native environments; 1 is best with as many actors as cores.
      actor: the actor's index.
      num_actors: the number of actors; 0: unknown, so each has one level.
      index: makes only this one of several levels, with the actions of all; None: the actor's
        levels.

    Raises:
      ConfigError: as `spec` does, or there are fewer environments than levels of the actor.
    """
    listed = levels(env)
    if len(listed) == 1:
        return Seeded(suite_of(listed[0]).make(listed[0], num_envs, num_threads), seed)
    indices = assigned(len(listed), actor, num_actors) if index is None else [index]
    count = len(indices)
    if num_envs < count:
        raise ConfigError(
            f"--envs_per_actor={num_envs}: an actor has {count} of the {len(listed)} "
            "levels; give at least as many environments, or more actors"
        )
    parts = [
        suite_of(listed[index]).make(listed[index], len(range(k, num_envs, count)), num_threads)
        for k, index in enumerate(indices)
    ]
    return Seeded(ManyLevels(parts, indices, spec(env).actions), seed)


def make_single(env: EnvironmentConfig, seed: int) -> Level:
    """Returns one environment of one level, with the level's own observations and actions.

    Args:
      env: the level's flags.
      seed: the seed of the first reset of an emulator or a vector environment. Other environments
        are seeded by their `reset`.

    Raises:
      ConfigError: as `spec` does.
    """
    suite = suite_of(env)
    if suite is gym.SUITE and (made := gym.make_plain(env)) is not None:
        return Level(made.env, env.num_action_repeats, made.observation_space, made.convert)
    single = Single(Seeded(suite.make(env, 1, 1), seed))
    return Level(single, 1, single.observation_space, lambda observation: observation)


class Level(NamedTuple):
    """One environment, and what makes its observations simple (see `spaces`)."""

    env: gymnasium.Env[Any, Any]
    repeats: int
    """How often an agent's action is repeated."""
    simple_space: gymnasium.Space[Any]
    convert: Callable[[Any], Any]


class Single(gymnasium.Env[Any, Any]):
    """The only environment of a vector environment whose autoreset mode is NEXT_STEP."""

    def __init__(self, vector: VectorEnv[Any, Any, Any]) -> None:
        self._vector = vector
        self.observation_space = vector.single_observation_space
        self.action_space = vector.single_action_space
        self.metadata = vector.metadata

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Resets the environment; see `gymnasium.Env.reset`."""
        observation, info = self._vector.reset(seed=seed, options=options)
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


def assigned(count: int, actor: int, num_actors: int) -> list[int]:
    """Returns the indices of an actor's levels, at least one of `count`."""
    if num_actors == 0 or num_actors >= count:
        return [actor % count]
    return list(range(actor % num_actors, count, num_actors))


def time_limit(env: EnvironmentConfig, index: int = 0) -> int:
    """Returns the time limit of a game of level `index`, in agent steps; 0: none is known."""
    return spec(levels(env)[index]).time_limit


def may_render(env: EnvironmentConfig) -> bool:
    """Returns whether all levels have a render mode for pictures."""
    return spec(env).renders


def check_rendering(env: EnvironmentConfig) -> None:
    """Renders the first step of each level.

    Raises:
      ConfigError: a level cannot be made, reset or rendered, or its render() does not return a
        picture.
    """
    for index in range(len(levels(env))):
        with contextlib.closing(RenderedGame(env, seed=0, index=index)) as game:
            with _errors_named(levels(env)[index].level_name, "reset"):
                game.environment.reset()
            game.frame()


@contextlib.contextmanager
def _errors_named(level_name: str, method: str) -> Iterator[None]:
    """Converts what a level's method raises to a ConfigError that names both."""
    flag = f"--level_name={level_name}"
    try:
        yield
    except LevelError as error:
        raise ConfigError(f"--level_name={error}") from error
    except (Exception, SystemExit) as error:
        line = explained(flag, error) or f"{flag}: its {method}() raised {plug_ins.raised(error)}"
        raise ConfigError(line) from error


class RenderedGame:
    """An environment to play, and its rendered picture.

    Args:
      env: the flags of the level or levels.
      seed: the seed of the first reset.
      index: the index of the level, if `env` lists several.

    Attributes:
      environment: the environment, with N = 1. On Atari, it is the same game that `make` makes from
        the same seed.
      fps: agent steps per second at the speed at which people play.

    Raises:
      ConfigError: the level cannot be made (see `spec`) or cannot be rendered.
    """

    def __init__(self, env: EnvironmentConfig, seed: int, index: int = 0) -> None:
        level = levels(env)[index]
        rendered = suite_of(level).make_rendered(level)
        if len(levels(env)) > 1:
            rendered = ManyLevels([rendered], [index], spec(env).actions)
        self._level_name = level.level_name
        self._vector = Seeded(rendered, seed)
        self.environment = BatchedEnvironment(self._vector)
        fps: Any = self._vector.metadata.get("render_fps")  # may be None or a NumPy number
        is_rate = isinstance(fps, numbers.Real) and 0 < float(fps) < math.inf
        self.fps = float(fps if is_rate else 30) / spec(env).frames_per_step

    def frame(self) -> np.ndarray:
        """Returns the picture of the last step, uint8 [H, W, 3].

        Raises:
          ConfigError: a package that renders the level is missing, or the result is not a picture.
        """
        with _errors_named(self._level_name, "render"):
            (picture,) = self._vector.render() or ()
        pixels = np.asarray(picture)
        if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3:
            got = "None" if picture is None else f"{pixels.dtype} {list(pixels.shape)}"
            raise ConfigError(
                f"--level_name={self._level_name}: its render() must return a picture, uint8"
                f" [H, W, 3], for render mode rgb_array, but returned {got}"
            )
        return pixels

    def close(self) -> None:
        """Closes the environment."""
        self.environment.close()


class Seeded(VectorWrapper[Any, Any, Any, Any, Any]):
    """Seeds the first reset; later resets continue the same random sequence."""

    def __init__(self, env: VectorEnv[Any, Any, Any], seed: int | Callable[[], int]) -> None:
        super().__init__(env)
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
    """Maps neighbouring seeds to distant ones, below 2**30 because ALE uses a C int.

    Vector environments count up from one seed, so neighbouring seeds would give nearly the same
    environments.
    """
    return int(np.random.SeedSequence(seed).generate_state(1)[0] >> 2)


def _union(env: EnvironmentConfig, specs: Sequence[EnvironmentSpec]) -> EnvironmentSpec:
    """Returns the spec of an agent that learns all levels."""
    first = specs[0]
    for other in specs[1:]:
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
