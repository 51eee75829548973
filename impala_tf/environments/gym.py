"""All other levels in Gymnasium's registry."""

from __future__ import annotations

import ctypes.util
import functools
import gc
import logging
import math
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gymnasium
from gymnasium.envs.registration import load_env_creator
from gymnasium.spaces import Box, Dict, Space
from gymnasium.vector import SyncVectorEnv, VectorEnv
from gymnasium.wrappers import TimeLimit

from impala_tf.config import ConfigError, EnvironmentConfig, LevelRaisedError
from impala_tf.config.own_levels import level_kwargs
from impala_tf.environments import own_levels, shades, spaces, step_times
from impala_tf.environments.batched import (
    AUTORESET_MODES,
    close,
    ends_with_parent,
    exits_are_errors,
    main_hidden,
)
from impala_tf.environments.images import as_image
from impala_tf.environments.registered import find, installed, module_of
from impala_tf.environments.suite import Suite, explained
from impala_tf.types import EnvironmentSpec, ObservationSpec

_log = logging.getLogger("impala_tf.environments")

# Steps that take longer are worth the overhead of a process per environment.
_EXPENSIVE_STEP_S = 1e-3


def spec(env: EnvironmentConfig) -> EnvironmentSpec:
    """Describes a registered level, or a user's own level. Raises ConfigError as `make` does."""
    vector = make(env, num_envs=1, num_threads=1)
    observation = spaces.observation_spec(vector.single_observation_space)
    actions = spaces.action_spec(vector.single_action_space)
    limit = _time_limit(env, vector)
    close(vector)
    repeats = env.num_action_repeats
    return EnvironmentSpec(
        level_name=env.level_name,
        kind=spaces.kind_of(observation),
        observation=observation,
        actions=actions,
        stacked_frames=0,
        frames_per_step=repeats,
        protocol=f"Gymnasium {own_levels.described(env)}, {_shown(observation)}, {actions}, "
        f"action repeat {repeats}, "
        + (f"at most {limit} frames" if limit else "no limit of frames"),
        time_limit=math.ceil(limit / repeats),
    )


def _time_limit(env: EnvironmentConfig, vector: VectorEnv[Any, Any, Any]) -> int:
    """Returns the level's time limit in its own steps; 0: no limit is known."""
    registered = getattr(vector.spec, "max_episode_steps", None)
    limits = [level_kwargs(env.level_kwargs).get("max_episode_steps", registered)]
    # A user's wrappers may have a lower limit, and a level without an id has no spec.
    wrapped = vector.envs[0] if isinstance(vector, SyncVectorEnv) else None
    while isinstance(wrapped, gymnasium.Wrapper):
        if isinstance(wrapped, TimeLimit):
            limits.append(wrapped._max_episode_steps)
        wrapped = wrapped.env
    # -1: none. A level of the user's own may have an argument with this name and other values.
    numbers = (math.ceil(limit) for limit in limits if isinstance(limit, (int, float)))
    return min((limit for limit in numbers if limit > 0), default=0)


def make(env: EnvironmentConfig, num_envs: int, num_threads: int) -> VectorEnv[Any, Any, Any]:
    """Returns N environments: the level's own vector environment, if it has one.

    Otherwise they are stepped in turn in this process, or in one process each, depending on
    --environment_processes. Processes are spawned, because forking a process that runs TensorFlow
    may hang. They end with the thread that calls this.

    Args:
      env: the level's flags.
      num_envs: N.
      num_threads: how many cores there are for these environments.

    Raises:
      ConfigError: the level does not exist, needs a package that is not installed, has unsupported
        spaces or an unsupported autoreset mode, or cannot be made with these arguments.
    """
    if not own_levels.is_own(env.level_name) and _has_fitting_vector(env):
        try:
            return _own_vector(env, num_envs)
        except LevelRaisedError:
            raise
        except ConfigError as error:  # its single environments may be supported
            if find(env.level_name).entry_point is None:
                raise
            _log.warning("%s; so its environments are made one by one", error)
    if num_envs == 1 or not _needs_processes(env, num_threads):
        return _vectorize(env, num_envs, "sync")
    _log.info("%s: %d processes, one for each environment", env.level_name, num_envs)
    with main_hidden():
        return _vectorize(env, num_envs, "async", vector_kwargs={"context": "spawn"})


def _own_vector(env: EnvironmentConfig, num_envs: int) -> VectorEnv[Any, Any, Any]:
    vector = _vectorize(env, num_envs, "vector_entry_point")
    if _is_rearranged(vector.single_observation_space):  # by `Simplify`, which vectors do not have
        close(vector)
        raise ConfigError(
            f"--level_name={env.level_name}: its vector environment has images"
            f" {vector.single_observation_space}; they must be [H, W, C]"
        )
    return vector


def _has_fitting_vector(env: EnvironmentConfig) -> bool:
    """Returns whether a level has its own vector environment, usable without changes."""
    registered = find(env.level_name)
    changed = env.num_action_repeats > 1 or env.level_kwargs or env.level_wrappers
    is_wrapped = changed or registered.additional_wrappers
    return registered.vector_entry_point is not None and not is_wrapped


def make_rendered(env: EnvironmentConfig) -> VectorEnv[Any, Any, Any]:
    """Returns one environment whose `render()` returns (uint8 [H, W, 3],).

    Raises:
      ConfigError: as `make` does, or the level has no render mode rgb_array.
    """
    unrendered = _vectorize(env, 1, "sync")
    render_modes = unrendered.metadata.get("render_modes", ())
    close(unrendered)
    if "rgb_array" not in render_modes:
        raise ConfigError(
            f"--level_name={env.level_name}: has no render mode rgb_array, so no video; leave"
            " --video and --video_every out"
        )
    _draw_without_screen()
    return _vectorize(env, 1, "sync", render_mode="rgb_array")


def _draw_without_screen() -> None:
    """Lets MuJoCo draw if there is no screen: Gymnasium would take GLFW, which needs one."""
    if {"DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL"} & os.environ.keys():
        return
    for library in ("EGL", "OSMesa"):
        if ctypes.util.find_library(library):
            os.environ["MUJOCO_GL"] = library.lower()
            return


def may_render(env: EnvironmentConfig) -> bool:
    """Returns whether a level seems to have the render mode rgb_array, without making it."""
    if own_levels.is_own(env.level_name):
        module, _, name = env.level_name.rpartition(":")
        return own_levels.may_render(getattr(sys.modules[module], name))
    make = find(env.level_name).entry_point
    if make is None:  # it has only a vector environment
        return False
    return own_levels.may_render(load_env_creator(make) if isinstance(make, str) else make)


def image_notes(env: EnvironmentConfig) -> list[str]:
    """Returns what `shades.notes` does. Raises what the level or making it raises."""
    vector = _vectorize(env, 1, "sync")
    try:
        single = vector.envs[0] if isinstance(vector, SyncVectorEnv) else None
        return (
            shades.notes(env.level_name, single.env) if isinstance(single, spaces.Simplify) else []
        )
    finally:
        close(vector)


def _is_rearranged(space: Space[Any]) -> bool:
    """Returns whether agents see an image with other numbers or another order of axes."""
    parts = space.spaces.values() if isinstance(space, Dict) else [space]
    images = ((part, as_image(part)) for part in parts if isinstance(part, Box))
    return any(
        image is not None and (image[0].shape, image[0].dtype) != (part.shape, part.dtype)
        for part, image in images
    )


class ActionRepeat(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Repeats every action for `repeats` steps, or until the episode ends, and sums rewards."""

    def __init__(self, env: gymnasium.Env[Any, Any], repeats: int) -> None:
        super().__init__(env)
        self._repeats = repeats

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Takes up to `repeats` steps; returns the last one's observation, flags and info."""
        rewards = 0.0
        for _ in range(self._repeats):
            observation, reward, terminated, truncated, info = self.env.step(action)
            rewards += float(reward)
            if terminated or truncated:
                break
        return observation, rewards, terminated, truncated, info


def _wrappers(env: EnvironmentConfig) -> list[Callable[[Any], Any]]:
    """Returns the wrappers of each environment. The last one only affects worker processes."""
    repeats = env.num_action_repeats
    repeated = [functools.partial(ActionRepeat, repeats=repeats)] if repeats > 1 else []
    worker_setup = functools.partial(ends_with_parent, parent_pid=os.getpid())
    simplify = functools.partial(spaces.Simplify, level_name=env.level_name)
    return [*own_levels.wrappers(env), *repeated, simplify, worker_setup]


def _needs_processes(env: EnvironmentConfig, cores: int) -> bool:
    """Returns whether each environment gets its own process.

    Where each actor has one core, processes make no steps faster that only compute. Each takes its
    memory, and its time to start: 32 an actor took longer than --environment_timeout_s.
    """
    if env.environment_processes != "auto":
        return env.environment_processes == "always"
    step_s, computing_s, waits = _measured_steps(env)
    if step_s <= _EXPENSIVE_STEP_S:
        return False
    if cores > 1 or waits or not _share_a_process(env):
        return True
    _log.info(
        "%s: a step computes for %.1f ms; the environments share the actor's process, since there"
        " is an actor for each core", env.level_name, 1e3 * computing_s,
    )  # fmt: skip
    return False


def _share_a_process(env: EnvironmentConfig) -> bool:
    """Returns whether two environments can be made here, and stepped by another thread.

    An actor does so. Some simulators allow one in each process, or must stay in their thread.
    """
    try:
        with exits_are_errors(), ThreadPoolExecutor(1) as thread:
            pair = _vectorize(env, 2, "sync")
            try:
                pair.reset(seed=0)
                thread.submit(pair.step, pair.action_space.sample()).result()
            finally:
                close(pair)
    except Exception as error:  # from the level's code
        _log.info("%s: its environments cannot share a process: %s", env.level_name, error)
    else:
        return True
    gc.collect()  # what was made before the error, if there can only be one
    return False


def _measured_steps(env: EnvironmentConfig) -> tuple[float, float, bool]:
    """Returns what `step_times.measured` does, of one environment."""
    probe = _vectorize(env, 1, "sync")
    try:
        with exits_are_errors():
            return step_times.measured(probe)
    finally:
        close(probe)


def _vectorize(
    env: EnvironmentConfig, num_envs: int, mode: str, **settings: Any
) -> VectorEnv[Any, Any, Any]:
    """Returns the level's vector environment. Raises ConfigError if it is not supported."""
    vector = _unchecked(env, num_envs, mode, **settings)
    try:
        _check(env.level_name, vector)
    except ConfigError:
        close(vector)
        raise
    return vector


def _unchecked(
    env: EnvironmentConfig, num_envs: int, mode: str, **settings: Any
) -> VectorEnv[Any, Any, Any]:
    make: Callable[[], VectorEnv[Any, Any, Any]]
    if own_levels.is_own(env.level_name):
        wrappers, render_mode = _wrappers(env), settings.get("render_mode")
        make = functools.partial(own_levels.make_vector, env, num_envs, mode, wrappers, render_mode)
    else:
        registered = find(env.level_name)
        if mode != "vector_entry_point":
            if registered.entry_point is None:
                raise ConfigError(
                    f"--level_name={env.level_name}: has only a vector environment, which can"
                    " neither repeat actions, nor take arguments or wrappers, nor be rendered;"
                    " leave out --num_action_repeats, --level_kwargs, --level_wrappers and --video"
                )
            settings["wrappers"] = _wrappers(env)
            settings |= own_levels.registered_kwargs(env, registered)
        settings["vectorization_mode"] = mode
        make = functools.partial(gymnasium.make_vec, registered, num_envs, **settings)
    try:
        with exits_are_errors():
            return make()
    except ConfigError:  # from a wrapper; it is also a ValueError
        raise
    except Exception as error:
        if problem := _problem(env, error, mode):
            raise problem from error
        raise


def _problem(env: EnvironmentConfig, error: Exception, mode: str) -> ConfigError | None:
    """Returns the ConfigError to raise for a level that cannot be made; None: raise `error`."""
    flag, is_own = f"--level_name={env.level_name}", own_levels.is_own(env.level_name)
    if isinstance(error, ValueError) and (is_own or not env.level_kwargs):  # from `spaces`
        return ConfigError(f"{flag}: {error}")
    if not is_own and isinstance(error, (gymnasium.error.DependencyNotInstalled, ImportError)):
        reason = " ".join(str(error).split())
        missing = f"{flag}: a package that it needs is not installed: {reason}"
        return ConfigError(explained(flag, error) or missing)
    # With "async", the cause is most likely the machine; otherwise, it is the level.
    if not is_own and mode != "async":
        return own_levels.raised(env, error)
    return None


def _check(level_name: str, vector: VectorEnv[Any, Any, Any]) -> None:
    try:
        spaces.observation_spec(vector.single_observation_space)
        spaces.action_spec(vector.single_action_space)
    except ValueError as error:
        raise ConfigError(f"--level_name={level_name}: {error}") from error
    mode = vector.metadata.get("autoreset_mode")
    if mode not in AUTORESET_MODES:
        supported = " and ".join(map(str, AUTORESET_MODES))
        raise ConfigError(
            f"--level_name={level_name}: its vector environment has the autoreset mode {mode}; "
            f"only {supported} are supported"
        )


def _shown(observation: ObservationSpec | dict[str, ObservationSpec]) -> str:
    if isinstance(observation, dict):
        return ", ".join(f"{name}: {_shown(part)}" for name, part in observation.items())
    return f"{observation.kind} {'x'.join(map(str, observation.shape))}"


SUITE = Suite(
    about="Gymnasium (some need the extra worlds; module:Level-v0 imports a module of yours first)",
    installed=installed,
    owns=lambda level_name: True,  # every level that no other suite owns
    spec=spec,
    make=make,
    make_rendered=make_rendered,
    may_render=may_render,
    image_notes=image_notes,
    uses_free_cores=True,
    takes_own=True,
    module_of=module_of,
)
