"""Levels in Gymnasium's registry: finds one by name, and lists the installed ones."""

from __future__ import annotations

import contextlib
import importlib.util
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from impala_tf.config import ConfigError
from impala_tf.environments import own_levels
from impala_tf.environments.own_levels import OLD_GYM
from impala_tf.environments.suite import missing_package, near_matches

# Gymnasium's ids for levels of gym, its predecessor. Here these are named gym:LEVEL.
_ADAPTERS = ("GymV21Environment-v0", "GymV26Environment-v0")
# Prefixes of levels, with the package to import to register them, and the function to call.
_PACKAGES = {
    "MiniGrid-": ("minigrid", ""),
    "BabyAI-": ("minigrid", ""),
    "MinAtar/": ("minatar.gym", "register_envs"),
}


def module_of(level_name: str) -> str:
    """Returns the Python module that a level name contains; '' if none."""
    return level_name.removeprefix(OLD_GYM).rpartition(":")[0]


def find(level_name: str) -> EnvSpec:
    """Returns the registered 'Env-v0', or 'module:Env-v0' after importing the module.

    The modules of MiniGrid, BabyAI and MinAtar need not be named.

    'gym:Env-v0' is a level of gym 0.26, Gymnasium's predecessor; 'gym:module:Env-v0' imports the
    module first.

    Raises:
      ConfigError: there is no such level (the message names near matches), or no such module.
    """
    if level_name.startswith(OLD_GYM):
        return _of_old_gym(level_name)
    module, _, name = level_name.rpartition(":")
    if module:
        own_levels.import_module(f"--level_name={level_name}", module)
    else:
        _register(name)
    registered = gymnasium.registry.get(name)
    if registered is None:
        near = near_matches(name, gymnasium.registry)
        if module and "-v" not in name:
            near = [*own_levels.near_names(module, name), *near]
        matches = f"near matches: {', '.join(near)}" if near else "no id is similar"
        raise ConfigError(f"--level_name={level_name}: no such level; {matches}")
    return registered


def _register(name: str) -> None:
    """Imports the package that registers a level, if the package is in _PACKAGES."""
    for prefix, (package, function) in _PACKAGES.items():
        is_registered = any(level_id.startswith(prefix) for level_id in gymnasium.registry)
        if name.startswith(prefix) and not is_registered:
            module = own_levels.import_module(f"--level_name={name}", package)
            if function:
                getattr(module, function)()


def _of_old_gym(level_name: str) -> EnvSpec:
    flag = f"--level_name={level_name}"
    try:
        import gym
        import shimmy  # noqa: F401  # used by `old_gym_level`
    except ImportError as error:
        raise ConfigError(missing_package(flag, "gym")) from error
    if module := module_of(level_name):
        own_levels.import_module(flag, module)
    # gym's checker needs NumPy 1. The name keeps its module, which other processes must import.
    old = level_name.removeprefix(OLD_GYM)
    kwargs = {"env_id": old, "make_kwargs": {"disable_env_checker": True}}
    try:
        limit = gym.spec(old.rpartition(":")[2]).max_episode_steps
    except gym.error.Error as error:
        raise ConfigError(f"{flag}: {' '.join(str(error).split())}") from error
    return EnvSpec(
        "GymV26Environment-v0",
        entry_point=f"{__name__}:{old_gym_level.__name__}",
        max_episode_steps=limit,
        disable_env_checker=True,
        kwargs=kwargs,
    )


def old_gym_level(
    env_id: str, make_kwargs: dict[str, Any], render_mode: str | None = None
) -> gymnasium.Env[Any, Any]:
    """Wraps a level of gym 0.26 for Gymnasium. Shimmy itself does not pass on the render mode."""
    import shimmy

    mode = {} if render_mode is None else {"render_mode": render_mode}
    env: gymnasium.Env[Any, Any] = shimmy.GymV26CompatibilityV0(env_id, {**make_kwargs, **mode})
    return env


def installed() -> list[str]:
    """Returns the registered ids, except those of Atari games and of adapters for old levels."""
    for prefix, (package, _) in _PACKAGES.items():
        if importlib.util.find_spec(package.partition(".")[0]) is not None:
            with contextlib.suppress(ConfigError):  # it cannot be imported, so it has no levels
                _register(prefix)
    atari = "ale_py.env:AtariEnv"
    specs = gymnasium.registry.values()
    return sorted(
        registered.id
        for registered in specs
        if registered.entry_point != atari and registered.id not in _ADAPTERS
    )
