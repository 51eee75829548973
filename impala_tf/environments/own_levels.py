"""A user's own levels and wrappers: functions and classes, named as module:name."""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Collection, Mapping
from types import ModuleType
from typing import Any

import gymnasium
from gymnasium import Space
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv

from impala_tf.config import ConfigError, EnvironmentConfig, LevelRaisedError, plug_ins
from impala_tf.config.own_levels import level_kwargs
from impala_tf.environments.suite import explained

Environment = gymnasium.Env[Any, Any]

OLD_GYM = "gym:"
"""The prefix of level names of gym 0.26."""

# Arguments that Gymnasium itself takes, for any level.
_OF_GYMNASIUM = ("max_episode_steps", "disable_env_checker")

_KEYWORD_KINDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def is_own(level_name: str) -> bool:
    """Returns whether a level is a function or a class, not a registered id.

    Raises:
      ConfigError: its module cannot be imported.
    """
    module, _, name = level_name.rpartition(":")
    if not module or level_name.startswith(OLD_GYM):
        return False
    imported = import_module(f"--level_name={level_name}", module)
    return name not in gymnasium.registry and callable(getattr(imported, name, None))


def make_vector(
    env: EnvironmentConfig,
    num_envs: int,
    mode: str,
    wrappers: Collection[Callable[[Any], Any]],
    render_mode: str | None = None,
) -> VectorEnv[Any, Any, Any]:
    """Returns N environments that the level's function or class makes.

    Args:
      env: the level's flags, for which `is_own` is True.
      num_envs: N.
      mode: "sync": stepped in turn in this process; "async": each in its own process.
      wrappers: the wrappers of each environment.
      render_mode: as in Gymnasium.

    Raises:
      ConfigError: the callable raises, or does not return an environment.
    """
    make_one = functools.partial(_make_one, env, list(wrappers), render_mode)
    if mode == "async":
        return AsyncVectorEnv([make_one] * num_envs, context="spawn")
    vector = SyncVectorEnv([make_one] * num_envs)
    vector.spec = vector.envs[0].spec
    return vector


def wrappers(env: EnvironmentConfig) -> list[Callable[[Any], Any]]:
    """Returns --level_wrappers. Applying one may raise ConfigError."""
    return [functools.partial(_wrapped, name) for name in plug_ins.split(env.level_wrappers)]


def modules_of_wrappers(env: EnvironmentConfig) -> set[str]:
    """Returns the modules that --level_wrappers names."""
    return {name.rpartition(":")[0] for name in plug_ins.split(env.level_wrappers)}


def described(env: EnvironmentConfig) -> str:
    """Returns a level's name with its arguments and wrappers, for the protocol."""
    kwargs = f" {env.level_kwargs}" if env.level_kwargs else ""
    names = " and ".join(plug_ins.split(env.level_wrappers))
    return f"{env.level_name}{kwargs}" + (f" wrapped by {names}" if names else "")


def checked_kwargs(
    env: EnvironmentConfig, make: Callable[..., Any], others: Collection[str] = ()
) -> dict[str, Any]:
    """Returns --level_kwargs.

    Args:
      env: the level's flags.
      make: the callable that makes the level.
      others: further allowed names.

    Raises:
      ConfigError: `make` does not take one of the arguments.
    """
    kwargs = level_kwargs(env.level_kwargs)
    if "render_mode" in kwargs:
        raise ConfigError("--level_kwargs: leave render_mode out; --video decides it")
    takes = _keywords(make)
    for name in kwargs:
        if takes is None or name in takes or name in others:
            continue
        near = difflib.get_close_matches(name, takes, 1)
        others_text = ", ".join(key for key in takes if key != "render_mode") or "no arguments"
        hint = f"did you mean '{near[0]}'?" if near else f"it takes {others_text}"
        raise ConfigError(f"--level_kwargs: {env.level_name} takes no '{name}'; {hint}")
    return kwargs


def registered_kwargs(env: EnvironmentConfig, registered: EnvSpec) -> dict[str, Any]:
    """Returns --level_kwargs for a level of Gymnasium's registry; see `checked_kwargs`."""
    if not env.level_kwargs:
        return {}
    entry_point = registered.entry_point
    assert entry_point is not None
    make = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
    return checked_kwargs(env, make, _OF_GYMNASIUM)


def may_render(make: Callable[..., Any]) -> bool:
    """Returns whether a level seems to be able to render, without making it.

    A class names its render modes. A function must at least take render_mode.
    """
    takes, metadata = _keywords(make), getattr(make, "metadata", None)
    if takes is not None and "render_mode" not in takes:
        return False
    # For other callables, and for wrappers, only the environment knows its render modes.
    if not inspect.isclass(make) or not isinstance(metadata, Mapping):
        return True
    return "rgb_array" in metadata.get("render_modes", ())


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
        if line := explained(flag, error):
            raise ConfigError(line) from error
        raise ConfigError(f"{flag}: {plug_ins.cannot_import(module, error)}") from error


def near_names(module: str, name: str) -> list[str]:
    """Returns 'module:name' of an imported module's callables with names similar to `name`."""
    members = vars(sys.modules[module])
    names = {other.lower(): other for other, value in members.items() if callable(value)}
    return [f"{module}:{names[near]}" for near in difflib.get_close_matches(name.lower(), names, 3)]


def raised(env: EnvironmentConfig, error: BaseException) -> ConfigError:
    """Returns the error to raise if a level's code raised while the level was made."""
    arguments = f" with --level_kwargs={env.level_kwargs}" if env.level_kwargs else ""
    # If the arguments may be wrong, retrying would not help.
    is_permanent = bool(arguments) and isinstance(error, (KeyError, TypeError, ValueError))
    kind = ConfigError if is_permanent else LevelRaisedError
    return kind(f"--level_name={env.level_name}{arguments}: raised {plug_ins.raised(error)}")


def _make_one(
    env: EnvironmentConfig, wrappers: list[Callable[[Any], Any]], render_mode: str | None
) -> Environment:
    """Returns one environment. It looks up the callable, because this may be another process."""
    flag = f"--level_name={env.level_name}"
    module, _, name = env.level_name.rpartition(":")
    make = getattr(import_module(flag, module), name)
    kwargs, takes = checked_kwargs(env, make), _keywords(make)
    if render_mode is not None and (takes is None or "render_mode" in takes):
        kwargs["render_mode"] = render_mode
    elif "render_mode" in _required(make):
        kwargs["render_mode"] = None
    _check_complete(flag, make, kwargs)
    try:
        made = make(**kwargs)
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        if line := explained(flag, error):
            raise ConfigError(line) from error
        raise raised(env, error) from error
    made = _environment(flag, made)
    if render_mode is not None and made.render_mode != render_mode:
        raise ConfigError(f"{flag}: for a video, it must give render_mode to its environment")
    for wrapper in wrappers:
        made = wrapper(made)
    return made


def _check_complete(flag: str, make: Callable[..., Any], kwargs: Mapping[str, Any]) -> None:
    """Raises ConfigError if `make` needs arguments that are not in `kwargs`."""
    if missing := [name for name in _required(make) if name not in kwargs]:
        names = " and ".join(f"'{name}'" for name in missing)
        example = ", ".join(f'"{name}": ...' for name in missing)
        raise ConfigError(f"{flag}: needs {names}: give --level_kwargs='{{{example}}}'")


def _wrapped(name: str, env: Environment) -> Environment:
    flag = f"--level_wrappers={name}"
    module, _, attribute = name.rpartition(":")
    wrapper = getattr(import_module(flag, module), attribute, None)
    if not callable(wrapper):
        near = near_names(module, attribute)
        hint = f"; near matches: {', '.join(near)}" if near else ""
        raise ConfigError(f"{flag}: the module {module} has no such function or class{hint}")
    try:
        made = wrapper(env)
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{flag}: raised {plug_ins.raised(error)}") from error
    return _environment(flag, made)


def _environment(flag: str, made: Any) -> Environment:
    if not isinstance(made, gymnasium.Env):
        raise ConfigError(
            f"{flag}: must return a gymnasium.Env, but returned {type(made).__name__}"
        )
    for name in ("observation_space", "action_space"):
        if not isinstance(found := getattr(made, name, None), Space):
            raise ConfigError(f"{flag}: its {name} must be a gymnasium.Space, but is {found!r}")
    return made


def _keywords(make: Callable[..., Any]) -> list[str] | None:
    """Returns the keywords that a callable takes; None: any keywords, or unknown."""
    try:
        parameters = inspect.signature(make).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return [parameter.name for parameter in parameters if parameter.kind in _KEYWORD_KINDS]


def _required(make: Callable[..., Any]) -> list[str]:
    """Returns the keywords that a callable cannot be called without, as far as it tells them."""
    try:
        parameters = inspect.signature(make).parameters.values()
    except (TypeError, ValueError):
        return []
    return [
        parameter.name
        for parameter in parameters
        if parameter.kind in _KEYWORD_KINDS and parameter.default is parameter.empty
    ]
