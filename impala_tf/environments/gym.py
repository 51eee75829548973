"""All other levels in Gymnasium's registry: discrete actions, images or vectors."""

from __future__ import annotations

import difflib
import functools
import importlib
import os
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Box, Discrete, Space
from gymnasium.vector import AutoresetMode, VectorEnv

from impala_tf.config import ConfigError, EnvironmentConfig
from impala_tf.environments.worker_process import ends_with_parent
from impala_tf.types import EnvironmentSpec, Kind

_SUPPORTED = "only discrete actions, and uint8 images [H, W, C] or vectors, are supported"


def owns(level_name: str) -> bool:
    """Returns True: this suite takes every level that no other suite owns."""
    return True


def spec(env: EnvironmentConfig) -> EnvironmentSpec:
    """Describes a registered level.

    Raises:
      ConfigError: see `make`.
    """
    vector = make(env, num_envs=1, num_threads=1)
    kind, shape = _observation(env.level_name, vector.single_observation_space)
    num_actions = _num_actions(env.level_name, vector.single_action_space)
    vector.close()
    repeats = env.num_action_repeats
    limit = find(env.level_name).max_episode_steps
    return EnvironmentSpec(
        level_name=env.level_name,
        kind=kind,
        observation_shape=shape,
        observation_dtype="uint8" if kind == "image" else "float32",
        num_actions=num_actions,
        stacked_frames=0,
        frames_per_step=repeats,
        protocol=f"Gymnasium {env.level_name}, {kind} {'x'.join(map(str, shape))}, "
        f"{num_actions} actions, action repeat {repeats}, "
        + (f"at most {limit} frames" if limit else "no limit of frames"),
    )


def make(env: EnvironmentConfig, num_envs: int, num_threads: int) -> VectorEnv[Any, Any, Any]:
    """Returns N environments: the level's own vector environment, else one process for each.

    Processes are spawned, because forking a process that runs TensorFlow may hang. They end with
    the thread that calls this. `num_threads` has no effect here.

    Raises:
      ConfigError: there is no such level, a package that it needs is not installed, or its spaces
        or its autoreset mode are not supported.
    """
    registered = find(env.level_name)
    repeated = _repeated(env)
    wrapped = repeated or registered.additional_wrappers
    if registered.vector_entry_point is not None and not wrapped:
        return _vectorize(env, num_envs, "vector_entry_point")
    if num_envs == 1:
        return _vectorize(env, num_envs, "sync", wrappers=repeated)
    worker_setup = functools.partial(ends_with_parent, parent_pid=os.getpid())
    return _vectorize(
        env,
        num_envs,
        "async",
        wrappers=[*repeated, worker_setup],
        vector_kwargs={"context": "spawn"},
    )


def make_rendered(env: EnvironmentConfig) -> VectorEnv[Any, Any, Any]:
    """Returns one environment whose `render()` returns (uint8 [H, W, 3],).

    Raises:
      ConfigError: see `make`; or the level has no render mode rgb_array.
    """
    unrendered = _vectorize(env, 1, "sync")
    render_modes = unrendered.metadata.get("render_modes", ())
    unrendered.close()
    if "rgb_array" not in render_modes:
        raise ConfigError(
            f"--video: --level_name={env.level_name} has no render mode rgb_array, so no video"
        )
    return _vectorize(env, 1, "sync", wrappers=_repeated(env), render_mode="rgb_array")


def find(level_name: str) -> EnvSpec:
    """Returns the registered 'Env-v0', or 'module:Env-v0' after importing the module.

    Raises:
      ConfigError: there is no such level (names near matches), or no such module.
    """
    module, _, name = level_name.rpartition(":")
    if module:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise ConfigError(
                f"--level_name={level_name}: cannot import the module '{module}': {error}"
            ) from error
    registered = gymnasium.registry.get(name)
    if registered is None:
        known = {registered_name.lower(): registered_name for registered_name in gymnasium.registry}
        near = [known[low] for low in difflib.get_close_matches(name.lower(), known, n=5)]
        matches = f"near matches: {', '.join(near)}" if near else "no id is similar"
        raise ConfigError(f"--level_name={level_name}: no such level; {matches}")
    return registered


class ActionRepeat(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Repeats every action for `repeats` steps, or until the episode ends, and adds the rewards."""

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


def _repeated(env: EnvironmentConfig) -> list[Callable[[Any], Any]]:
    """Returns the wrapper that repeats actions, or nothing if actions are not repeated."""
    repeats = env.num_action_repeats
    return [functools.partial(ActionRepeat, repeats=repeats)] if repeats > 1 else []


def _vectorize(
    env: EnvironmentConfig, num_envs: int, mode: str, **settings: Any
) -> VectorEnv[Any, Any, Any]:
    """Returns the level's vector environment; ConfigError if it is missing or not supported."""
    registered = find(env.level_name)
    if mode != "vector_entry_point" and registered.entry_point is None:
        raise ConfigError(
            f"--level_name={env.level_name}: has only a vector environment, which can neither "
            "repeat actions nor be rendered; leave out --num_action_repeats and --video"
        )
    try:
        vector = gymnasium.make_vec(registered, num_envs, vectorization_mode=mode, **settings)
    except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"--level_name={env.level_name}: a package that it needs is not installed: {reason}"
        ) from error
    try:
        _check(env.level_name, vector)
    except ConfigError:
        vector.close()
        raise
    return vector


def _check(level_name: str, vector: VectorEnv[Any, Any, Any]) -> None:
    _observation(level_name, vector.single_observation_space)
    _num_actions(level_name, vector.single_action_space)
    mode = vector.metadata.get("autoreset_mode")
    if mode != AutoresetMode.NEXT_STEP:
        raise ConfigError(
            f"--level_name={level_name}: its vector environment has the autoreset mode {mode}; "
            f"only {AutoresetMode.NEXT_STEP} is supported"
        )


def _num_actions(level_name: str, space: Space[Any]) -> int:
    if isinstance(space, Discrete):
        return int(space.n)
    raise ConfigError(f"--level_name={level_name}: has actions {space}; {_SUPPORTED}")


def _observation(level_name: str, space: Space[Any]) -> tuple[Kind, tuple[int, ...]]:
    """Returns (kind, shape as the agent sees it) of a Gymnasium level's observations."""
    if isinstance(space, Box) and len(space.shape) == 1:
        return "vector", space.shape
    if isinstance(space, Box) and space.dtype == np.uint8:
        if len(space.shape) == 2:
            return "image", (*space.shape, 1)
        if len(space.shape) == 3:
            # Channels first would look like a flat, wide image and train badly without any warning.
            if space.shape[0] < space.shape[2]:
                raise ConfigError(
                    f"--level_name={level_name}: has images of shape {space.shape}, which looks "
                    "like channels first; only channels last are supported"
                )
            return "image", space.shape
    raise ConfigError(f"--level_name={level_name}: has observations {space}; {_SUPPORTED}")
