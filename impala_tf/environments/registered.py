"""Finds what makes a level by its name, and lists the levels that are installed."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
from collections.abc import Callable
from types import ModuleType
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec
from gymnasium.wrappers import TimeLimit

from impala_tf.config import ConfigError, plug_ins
from impala_tf.environments.suite import explained, missing_package, near_matches

OLD_GYM = "gym:"
"""The prefix of level names of gym 0.26."""

# Gymnasium's ids for levels of gym, its predecessor. Here these are named gym:LEVEL.
_ADAPTERS = ("GymV21Environment-v0", "GymV26Environment-v0")
# Prefixes of levels, with the package to import to register them, and the function to call.
_PACKAGES = {
    "MiniGrid-": ("minigrid", ""),
    "BabyAI-": ("minigrid", ""),
    "MinAtar/": ("minatar.gym", "register_envs"),
}

Maker = EnvSpec | Callable[..., gymnasium.Env[Any, Any]]
"""A registered level, or a function or class that makes environments."""


def module_of(level_name: str) -> str:
    """Returns the Python module that a level name contains; '' if none."""
    return level_name.removeprefix(OLD_GYM).rpartition(":")[0]


def find(level_name: str) -> Maker:
    """Returns what makes a level: always the same object, unless it was defined again.

    'Env-v0' is a registered level, and so is 'module:Env-v0', after importing the module; the
    modules of MiniGrid, BabyAI and MinAtar need not be named. 'module:name' may also be a function
    or a class of the user. 'gym:Env-v0' is a level of gym 0.26, Gymnasium's predecessor;
    'gym:module:Env-v0' imports the module first.

    Raises:
      ConfigError: there is no such level (the message names near matches), or no such module.
    """
    flag, module = f"--level_name={level_name}", module_of(level_name)
    imported = import_module(flag, module) if module else None
    if level_name.startswith(OLD_GYM):
        return _of_old_gym(level_name)
    name = level_name.rpartition(":")[2]
    if not module:
        _register(name)
    if name in gymnasium.registry:
        return gymnasium.registry[name]
    made_by = getattr(imported, name, None)
    if callable(made_by):
        return made_by
    hint = plug_ins.near(name, vars(imported)) if imported and "-v" not in name else ""
    near = near_matches(name, gymnasium.registry)
    matches = f"; near matches: {', '.join(near)}" if near else "; no id is similar"
    raise ConfigError(f"{flag}: no such level{hint or matches}")


def import_module(flag: str, module: str) -> ModuleType:
    """Imports a user's module, which may be in the current folder.

    Args:
      flag: the flag that names the module, as --flag=value, for messages.
      module: the module's name.

    Raises:
      ConfigError: the module does not exist, or raises.
    """
    plug_ins.look_in_current_folder()
    try:
        return importlib.import_module(module)
    except (Exception, SystemExit) as error:
        line = explained(flag, error) or f"{flag}: {plug_ins.cannot_import(module, error)}"
        raise ConfigError(line) from error


def _register(name: str) -> None:
    """Imports the package that registers a level, if the package is in _PACKAGES."""
    for prefix, (package, function) in _PACKAGES.items():
        is_registered = any(level_id.startswith(prefix) for level_id in gymnasium.registry)
        if name.startswith(prefix) and not is_registered:
            module = import_module(f"--level_name={name}", package)
            if function:
                getattr(module, function)()


@functools.cache
def _of_old_gym(level_name: str) -> Callable[..., gymnasium.Env[Any, Any]]:
    try:
        import gym
        import shimmy
    except ImportError as error:
        raise ConfigError(missing_package(f"--level_name={level_name}", "gym")) from error

    def make(**kwargs: Any) -> gymnasium.Env[Any, Any]:
        # gym's own checker needs NumPy 1.
        old = gym.make(level_name.removeprefix(OLD_GYM), disable_env_checker=True, **kwargs)
        env: gymnasium.Env[Any, Any] = shimmy.GymV26CompatibilityV0(env=old)
        limit = old.spec.max_episode_steps
        return TimeLimit(env, limit) if limit else env

    return make


def installed() -> list[str]:
    """Returns the registered ids, except those of Atari games and of adapters for old levels."""
    for prefix, (package, _) in _PACKAGES.items():
        if importlib.util.find_spec(package.partition(".")[0]) is not None:
            with contextlib.suppress(ConfigError):  # it cannot be imported, so it has no levels
                _register(prefix)
    return sorted(
        registered.id
        for registered in gymnasium.registry.values()
        if registered.entry_point != "ale_py.env:AtariEnv" and registered.id not in _ADAPTERS
    )
