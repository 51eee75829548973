"""All other levels: those in Gymnasium's registry, of gym 0.26, and functions of the user."""

from __future__ import annotations

import contextlib
import ctypes.util
import functools
import math
import os
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces.utils import is_space_dtype_shape_equiv
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate
from gymnasium.wrappers import TimeLimit
from gymnasium.wrappers.vector import TransformObservation

from impala_tf.config import ConfigError, EnvironmentConfig
from impala_tf.environments import masks, single, spaces
from impala_tf.environments.simplify import Simplify
from impala_tf.environments.suite import Suite
from impala_tf.environments.workers import InProcesses, close
from impala_tf.types import ACTION_MASK, EnvironmentSpec


class Gym(Suite):
    """Every level that no other suite owns."""

    about = (
        "Gymnasium (some need the extra worlds; module:Level-v0 imports a module of yours first)"
    )

    def owns(self, level_name: str) -> bool:
        """Returns True."""
        return True

    def spec(self, env: EnvironmentConfig) -> EnvironmentSpec:
        """Describes a level. Makes one environment, and resets it once.

        Raises:
          ConfigError: the level does not exist, needs a package that is not installed, has
            unsupported spaces or an unsupported autoreset mode, or cannot be made with these
            arguments.
        """
        vector = _own_vector(env, 1)
        made: Any = vector or single.make(env)
        try:
            return _describe(env, made)
        except ValueError as error:
            raise ConfigError(f"--level_name={env.level_name}: {error}") from error
        finally:
            close(made)

    def make(
        self, env: EnvironmentConfig, spec: EnvironmentSpec, num_envs: int, num_threads: int
    ) -> VectorEnv[Any, Any, Any]:
        """Returns N environments: the level's own vector environment, if it has one.

        Otherwise they are stepped in turn in this process, or with --environment_processes in one
        process each.
        """
        if vector := _own_vector(env, num_envs):
            return _convert_batches(vector, spec)
        make_here = functools.partial(make_one, env, spec)
        if env.environment_processes:
            return InProcesses(make_here, num_envs, spec)
        return SyncVectorEnv([make_here] * num_envs)

    def make_rendered(
        self, env: EnvironmentConfig, spec: EnvironmentSpec
    ) -> VectorEnv[Any, Any, Any]:
        """Returns one environment; ConfigError if the level has no render mode rgb_array."""
        if not spec.renders:
            raise ConfigError(
                f"--level_name={env.level_name}: has no render mode rgb_array, so no video; leave"
                " --video and --video_every out (a function or class must take render_mode and"
                " pass it on)"
            )
        _draw_without_screen()
        return SyncVectorEnv([functools.partial(make_one, env, spec, "rgb_array")])

    def installed(self) -> list[str]:
        """Returns the registered ids, except those of Atari games and adapters."""
        return single.installed()


def make_one(
    env: EnvironmentConfig, spec: EnvironmentSpec, render_mode: str | None = None
) -> Simplify:
    """Returns one environment of a level that has not only a vector environment."""
    return Simplify(masks.shown(single.make(env, render_mode), spec), spec)


def has_only_vectors(level_name: str) -> bool:
    """Returns whether a level cannot be made as a single environment."""
    registered = single.find(level_name)
    return isinstance(registered, EnvSpec) and registered.entry_point is None


def _describe(env: EnvironmentConfig, made: Any) -> EnvironmentSpec:
    offsets: dict[str, Any] = {}
    if isinstance(made, VectorEnv):
        actions = spaces.action_spec(made.single_action_space)
        with contextlib.suppress(Exception, SystemExit):  # what is wrong is said where it is played
            batch, _ = made.reset(seed=0)
            first = next(iter(iterate(made.observation_space, batch)))
            offsets = spaces.find_offsets(made.single_observation_space, first)
        observation, _ = spaces.view(made.single_observation_space, offsets)
        limits = [made.spec.max_episode_steps if made.spec else None]
    else:
        actions, space = spaces.action_spec(made.action_space), made.observation_space
        with contextlib.suppress(Exception, SystemExit):
            first, info = made.reset(seed=0)
            offsets = spaces.find_offsets(space, first)
            if ACTION_MASK in info and actions.kind != "continuous":
                space = masks.MaskInObservation(made).observation_space
        observation, _ = spaces.view(space, offsets)
        if made.unwrapped.spec is None:
            made.unwrapped.spec = EnvSpec("Level-v0")  # so that its wrappers have theirs
        specs = [each.spec for each in single.wrappers_of(made) if isinstance(each, TimeLimit)]
        limits = [spec.max_episode_steps for spec in specs if spec is not None]
    masks.check(observation, actions)
    limit = min((math.ceil(limit) for limit in limits if limit), default=0)
    repeats = env.num_action_repeats
    modes = made.metadata.get("render_modes") or ()
    parts = observation.items() if isinstance(observation, dict) else [("", observation)]
    shown = ", ".join(
        (f"{name}: " if name else "")
        + f"{part.kind} {'x'.join(map(str, part.shape))}"
        + (f" minus {offsets[name]}" if name in offsets else "")
        for name, part in parts
    )
    level = " ".join(filter(None, (env.level_name, env.level_kwargs)))
    level += f" wrapped by {env.level_wrappers}" if env.level_wrappers.strip() else ""
    return EnvironmentSpec(
        level_name=env.level_name,
        kind=spaces.kind_of(observation),
        observation=observation,
        actions=actions,
        stacked_frames=0,
        frames_per_step=repeats,
        protocol=f"Gymnasium {level}, {shown}, {actions}, action repeat {repeats}, "
        + (f"at most {limit} frames" if limit else "no limit of frames"),
        time_limit=math.ceil(limit / repeats),
        renders="rgb_array" in modes and single.takes_render_mode(single.find(env.level_name)),
        offsets=offsets,
    )


def _own_vector(env: EnvironmentConfig, num_envs: int) -> VectorEnv[Any, Any, Any] | None:
    """Returns the level's own vector environment; None if it has none that fits.

    Raises:
      ConfigError: it has nothing else.
    """
    registered = single.find(env.level_name)
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
            raise single.not_made(env, error) from error
        single.check_normalizers(f"--level_name={env.level_name}", vector)
        mode = vector.metadata.get("autoreset_mode")
        if mode == AutoresetMode.NEXT_STEP:
            return vector
        # Else the last or the first step of each game would be lost.
        problem = (
            f"its vector environment has the autoreset mode {mode}; register it with NEXT_STEP, or"
            " with an entry_point, so that single environments are made"
        )
        close(vector)
    if registered.entry_point is None:
        raise ConfigError(f"--level_name={env.level_name}: {problem}")
    return None


def _convert_batches(
    vector: VectorEnv[Any, Any, Any], spec: EnvironmentSpec
) -> VectorEnv[Any, Any, Any]:
    """Returns a level's own vector environment with the observations that agents see."""
    seen, own = spaces.space_of(spec), vector.single_observation_space
    if is_space_dtype_shape_equiv(seen, own) and not spec.offsets:
        return vector
    _, convert = spaces.view(own, spec.offsets)

    def convert_batch(batch: Any) -> Any:
        rows = [convert(row) for row in iterate(vector.observation_space, batch)]
        into: Any = create_empty_array(seen, vector.num_envs)
        return concatenate(seen, rows, into)

    return TransformObservation(vector, convert_batch, batch_space(seen, vector.num_envs), seen)


def _draw_without_screen() -> None:
    """Lets MuJoCo draw if there is no screen: Gymnasium would take GLFW, which needs one."""
    if {"DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL"} & os.environ.keys():
        return
    for library in ("EGL", "OSMesa"):
        if ctypes.util.find_library(library):
            os.environ["MUJOCO_GL"] = library.lower()
            return
