"""All other levels: those in Gymnasium's registry, of gym 0.26, and functions of the user."""

from __future__ import annotations

import ctypes.util
import functools
import math
import os
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space
from gymnasium.wrappers import TimeLimit
from gymnasium.wrappers.vector import TransformObservation

from impala_tf.config import ConfigError, EnvironmentConfig
from impala_tf.environments import own_levels, spaces
from impala_tf.environments.registered import find, installed
from impala_tf.environments.suite import Suite
from impala_tf.environments.workers import Looks, close, in_processes
from impala_tf.types import EnvironmentSpec, ObservationSpec

# {flags: (what makes the level, the looks of an environment, its time limit in frames)}. Making a
# level may be slow, or need a licence, so a process makes it once to describe it.
_seen: dict[EnvironmentConfig, tuple[Any, Looks, int]] = {}


def spec(env: EnvironmentConfig) -> EnvironmentSpec:
    """Describes a level. Makes one environment, once in each process. Raises as `make` does."""
    looks, limit = _look(env)
    observation = spaces.observation_spec(looks.observation_space)
    actions = spaces.action_spec(looks.action_space)
    repeats = env.num_action_repeats
    return EnvironmentSpec(
        level_name=env.level_name,
        kind=spaces.kind_of(observation),
        observation=observation,
        actions=actions,
        stacked_frames=0,
        frames_per_step=repeats,
        protocol=f"Gymnasium {own_levels.described(env)}, {_shown(observation, looks.offsets)}, "
        f"{actions}, "
        f"action repeat {repeats}, "
        + (f"at most {limit} frames" if limit else "no limit of frames"),
        time_limit=math.ceil(limit / repeats),
        renders=may_render(env),
        offsets={name: offset.tolist() for name, offset in (looks.offsets or {}).items()},
    )


def make(env: EnvironmentConfig, num_envs: int, num_threads: int) -> VectorEnv[Any, Any, Any]:
    """Returns N environments: the level's own vector environment, if it has one.

    Otherwise they are stepped in turn in this process, or with --environment_processes in one
    process each. `num_threads` has no effect here.

    Raises:
      ConfigError: the level does not exist, needs a package that is not installed, has unsupported
        spaces or an unsupported autoreset mode, or cannot be made with these arguments.
    """
    if vector := _own_vector(env, num_envs):
        return _nearer(vector, _look(env)[0])
    looks, _ = _look(env)
    make_here = functools.partial(make_one, env, offsets=looks.offsets)
    if env.environment_processes:
        return in_processes(make_here, num_envs, looks)
    return SyncVectorEnv([make_here] * num_envs)


def make_one(
    env: EnvironmentConfig,
    render_mode: str | None = None,
    offsets: Mapping[str, np.ndarray] | None = None,
) -> spaces.Simplify:
    """Returns one environment. Raises as `make` does."""
    made = own_levels.make(env, render_mode)
    try:
        return spaces.Simplify(made, env.level_name, env.num_action_repeats, offsets)
    except ValueError as error:
        raise ConfigError(f"--level_name={env.level_name}: {error}") from error


def make_plain(env: EnvironmentConfig) -> spaces.Simplify | None:
    """Returns one environment that converts as those of a run do; its `env` is the level's own.

    None if the level has only a vector environment.
    """
    registered = find(env.level_name)
    if isinstance(registered, EnvSpec) and registered.entry_point is None:
        return None
    return make_one(env, offsets=_look(env)[0].offsets)


def make_rendered(env: EnvironmentConfig) -> VectorEnv[Any, Any, Any]:
    """Returns one environment whose `render()` returns (uint8 [H, W, 3],).

    Raises:
      ConfigError: as `make` does, or the level has no render mode rgb_array.
    """
    if may_render(env):
        _draw_without_screen()
        offsets = _look(env)[0].offsets
        return SyncVectorEnv([functools.partial(make_one, env, "rgb_array", offsets)])
    raise ConfigError(
        f"--level_name={env.level_name}: has no render mode rgb_array, so no video; leave --video"
        " and --video_every out (a function or class must take render_mode and pass it on)"
    )


def _draw_without_screen() -> None:
    """Lets MuJoCo draw if there is no screen: Gymnasium would take GLFW, which needs one."""
    if {"DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL"} & os.environ.keys():
        return
    for library in ("EGL", "OSMesa"):
        if ctypes.util.find_library(library):
            os.environ["MUJOCO_GL"] = library.lower()
            return


def may_render(env: EnvironmentConfig) -> bool:
    """Returns whether a level has the render mode rgb_array. Makes it, once in each process."""
    modes = _look(env)[0].metadata.get("render_modes") or ()
    return "rgb_array" in modes and own_levels.takes_render_mode(find(env.level_name))


def _look(env: EnvironmentConfig) -> tuple[Looks, int]:
    """Returns the looks of an environment, and its time limit in frames; 0: none is known."""
    maker = find(env.level_name)  # another one if the user has changed the function
    if env not in _seen or _seen[env][0] is not maker:
        made: Any
        if made := _own_vector(env, 1):
            offsets = spaces.offsets_of(made)
            space, _ = spaces.simplified(made.single_observation_space, offsets)
            actions = made.single_action_space
            limits = [made.spec.max_episode_steps if made.spec else None]
        else:
            made = make_one(env)
            offsets = spaces.offsets_of(made.env)
            space, _ = spaces.simplified(made.env.observation_space, offsets)
            actions = made.action_space
            wrappers = own_levels.wrappers_of(made)
            limits = [each._max_episode_steps for each in wrappers if isinstance(each, TimeLimit)]
        limit = min((math.ceil(limit) for limit in limits if limit), default=0)
        _seen[env] = maker, Looks(space, actions, dict(made.metadata), offsets), limit
        close(made) if isinstance(made, VectorEnv) else made.close()
    return _seen[env][1:]


def _own_vector(env: EnvironmentConfig, num_envs: int) -> VectorEnv[Any, Any, Any] | None:
    """Returns the level's own vector environment; None if it has none that fits.

    Raises:
      ConfigError: it has nothing else.
    """
    registered = find(env.level_name)
    if not isinstance(registered, EnvSpec) or registered.vector_entry_point is None:
        return None
    changes = env.level_kwargs or env.level_wrappers or registered.additional_wrappers
    if env.num_action_repeats > 1 or changes:
        problem = (
            "has only a vector environment, which can neither repeat actions, nor take arguments"
            " or wrappers; leave out --num_action_repeats, --level_kwargs and --level_wrappers"
        )
    else:
        try:
            vector = gymnasium.make_vec(registered, num_envs, "vector_entry_point")
        except (Exception, SystemExit) as error:
            raise own_levels.not_made(env, error) from error
        own_levels.check_normalizers(f"--level_name={env.level_name}", vector)
        if not (problem := _misfit(vector)):
            return vector
        close(vector)
    if registered.entry_point is None:
        raise ConfigError(f"--level_name={env.level_name}: {problem}")
    return None


def _nearer(vector: VectorEnv[Any, Any, Any], looks: Looks) -> VectorEnv[Any, Any, Any]:
    """Returns a level's own vector environment with its offsets subtracted, if it has any."""
    if not looks.offsets:
        return vector
    # What works on one observation works on a batch: `_misfit` refuses all other conversions.
    nearer, convert = spaces.simplified(vector.single_observation_space, looks.offsets)
    batch = batch_space(nearer, vector.num_envs)
    return TransformObservation(vector, convert, batch, nearer)


def _misfit(vector: VectorEnv[Any, Any, Any]) -> str:
    """Returns why a level's own vector environment cannot be used; '' if it can."""
    mode, space = vector.metadata.get("autoreset_mode"), vector.single_observation_space
    if mode != AutoresetMode.NEXT_STEP:
        # Else the last or the first step of each game would be lost.
        return (
            f"its vector environment has the autoreset mode {mode}; register it with NEXT_STEP, or"
            " with an entry_point, so that single environments are made"
        )
    try:
        spaces.action_spec(vector.single_action_space)
        if spaces.simplified(space)[0] != space:
            return f"its vector environment has observations {space}; images must be [H, W, C]"
    except ValueError as error:
        return str(error)
    return ""


def _shown(
    observation: ObservationSpec | dict[str, ObservationSpec],
    offsets: Mapping[str, np.ndarray] | None,
    name: str = "",
) -> str:
    offsets = offsets or {}
    if isinstance(observation, dict):
        parts = (f"{part}: {_shown(spec, offsets, part)}" for part, spec in observation.items())
        return ", ".join(parts)
    minus = f" minus {offsets[name].ravel().tolist()}" if name in offsets else ""
    return f"{observation.kind} {'x'.join(map(str, observation.shape))}{minus}"


SUITE = Suite(
    about="Gymnasium (some need the extra worlds; module:Level-v0 imports a module of yours first)",
    installed=installed,
    owns=lambda level_name: True,  # every level that no other suite owns
    spec=spec,
    make=make,
    make_rendered=make_rendered,
)
