"""Levels and wrappers of the user's own: functions and classes, named as module:name."""

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
"""What the names of levels of gym 0.26 begin with."""

# Gymnasium itself takes these, whatever the level's class takes.
_OF_GYMNASIUM = ("max_episode_steps", "disable_env_checker")


def is_own(level_name: str) -> bool:
    """Tells whether a level is a function or a class, and no id that is registered.

    Raises:
      ConfigError: its module cannot be imported.
    """
    module, _, name = level_name.rpartition(":")
    if not module or level_name.startswith(OLD_GYM):
        return False
    found = import_module(f"--level_name={level_name}", module)
    return name not in gymnasium.registry and callable(getattr(found, name, None))


def make_vector(
    env: EnvironmentConfig,
    num_envs: int,
    mode: str,
    wrappers: Collection[Callable[[Any], Any]],
    render_mode: str | None = None,
) -> VectorEnv[Any, Any, Any]:
    """Returns N environments that the level's function or class makes.

    Args:
      env: the level's flags; the level `is_own`.
      num_envs: N.
      mode: "sync": one after another in this process; "async": each in a process.
      wrappers: those of each environment.
      render_mode: as in Gymnasium.

    Raises:
      ConfigError: the callable raises, or returns no environment.
    """
    make_one = functools.partial(_make_one, env, list(wrappers), render_mode)
    if mode == "async":
        return AsyncVectorEnv([make_one] * num_envs, context="spawn")
    vector = SyncVectorEnv([make_one] * num_envs)
    vector.spec = vector.envs[0].spec
    return vector


def wrappers(env: EnvironmentConfig) -> list[Callable[[Any], Any]]:
    """Returns --level_wrappers, each of which may raise ConfigError when it is applied."""
    return [functools.partial(_wrapped, name) for name in plug_ins.split(env.level_wrappers)]


def modules_of_wrappers(env: EnvironmentConfig) -> set[str]:
    """Returns the modules that --level_wrappers names."""
    return {name.rpartition(":")[0] for name in plug_ins.split(env.level_wrappers)}


def described(env: EnvironmentConfig) -> str:
    """Returns a level's name with its arguments and wrappers, as the protocol has it."""
    kwargs = f" {env.level_kwargs}" if env.level_kwargs else ""
    names = " and ".join(plug_ins.split(env.level_wrappers))
    return f"{env.level_name}{kwargs}" + (f" wrapped by {names}" if names else "")


def checked_kwargs(
    env: EnvironmentConfig, make: Callable[..., Any], others: Collection[str] = ()
) -> dict[str, Any]:
    """Returns --level_kwargs.

    Args:
      env: the level's flags.
      make: what makes the level.
      others: names that something else takes.

    Raises:
      ConfigError: `make` does not take one of them.
    """
    kwargs = level_kwargs(env.level_kwargs)
    if "render_mode" in kwargs:
        raise ConfigError("--level_kwargs: leave render_mode out; --video decides it")
    takes = _keywords(make)
    for name in kwargs:
        if takes is None or name in takes or name in others:
            continue
        near = difflib.get_close_matches(name, takes, 1)
        named = ", ".join(each for each in takes if each != "render_mode") or "no arguments"
        hint = f"did you mean '{near[0]}'?" if near else f"it takes {named}"
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
    """Tells whether what makes a level seems to draw it, too; nothing is made.

    A class says which render modes it has. A function must at least take render_mode.
    """
    takes, metadata = _keywords(make), getattr(make, "metadata", None)
    if takes is not None and "render_mode" not in takes:
        return False
    # Of other callables, and of wrappers, only what they make knows it.
    if not inspect.isclass(make) or not isinstance(metadata, Mapping):
        return True
    return "rgb_array" in metadata.get("render_modes", ())


def import_module(flag: str, module: str) -> ModuleType:
    """Imports a module of the user's, which may lie in the current folder.

    Args:
      flag: what names it, as --flag=value, for messages.
      module: its name.

    Raises:
      ConfigError: it does not exist, or raises.
    """
    plug_ins.look_in_current_folder()
    try:
        return importlib.import_module(module)
    except (Exception, SystemExit) as error:
        if line := explained(flag, error):
            raise ConfigError(line) from error
        raise ConfigError(f"{flag}: {plug_ins.cannot_import(module, error)}") from error


def near_names(module: str, name: str) -> list[str]:
    """Returns 'module:name' of the functions and classes of an imported module that are similar."""
    found = vars(sys.modules[module])
    names = {other.lower(): other for other, value in found.items() if callable(value)}
    return [f"{module}:{names[near]}" for near in difflib.get_close_matches(name.lower(), names, 3)]


def raised(env: EnvironmentConfig, error: BaseException) -> ConfigError:
    """Returns what to raise about a level whose own code raised while it was made."""
    given = f" with --level_kwargs={env.level_kwargs}" if env.level_kwargs else ""
    # Wrong arguments are wrong at any time.
    of_flag = bool(given) and isinstance(error, (KeyError, TypeError, ValueError))
    kind = ConfigError if of_flag else LevelRaisedError
    return kind(f"--level_name={env.level_name}{given}: raised {plug_ins.raised(error)}")


def _make_one(
    env: EnvironmentConfig, wrappers: list[Callable[[Any], Any]], render_mode: str | None
) -> Environment:
    """Returns one environment. Looks its callable up here: this may be a process of its own."""
    flag = f"--level_name={env.level_name}"
    module, _, name = env.level_name.rpartition(":")
    make = getattr(import_module(flag, module), name)
    kwargs, takes = checked_kwargs(env, make), _keywords(make)
    if render_mode is not None and (takes is None or "render_mode" in takes):
        kwargs["render_mode"] = render_mode
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
        raise ConfigError(f"--video: {flag} must take render_mode and give it to its environment")
    for wrapper in wrappers:
        made = wrapper(made)
    return made


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
    """Returns which keywords a callable takes; None: any, or it cannot be found out."""
    try:
        parameters = inspect.signature(make).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return None
    of_keyword = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [each.name for each in parameters if each.kind in of_keyword]
