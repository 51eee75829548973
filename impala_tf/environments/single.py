"""Finds what makes a level by its name, and makes one environment with the user's arguments."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import inspect
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

import gymnasium
from gymnasium import Space
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.vector import VectorEnv, VectorWrapper
from gymnasium.wrappers import TimeLimit

from impala_tf.config import ConfigError, EnvironmentConfig, LevelRaisedError, plug_ins
from impala_tf.config.plug_ins import level_kwargs, level_wrappers
from impala_tf.environments.suite import explain_import, missing_package, near_matches

Environment = gymnasium.Env[Any, Any]
Maker = EnvSpec | Callable[..., Environment]
"""A registered level, or a function or class that makes environments."""

_OLD_GYM = "gym:"  # the prefix of level names of gym 0.26
# Gymnasium's ids for levels of gym, its predecessor.
_ADAPTERS = ("GymV21Environment-v0", "GymV26Environment-v0")
# Prefixes of levels, with the package to import to register them, and the function to call.
_PACKAGES = {
    "MiniGrid-": ("minigrid", ""),
    "BabyAI-": ("minigrid", ""),
    "MinAtar/": ("minatar.gym", "register_envs"),
}
# Arguments that Gymnasium itself takes, for any registered level.
_OF_GYMNASIUM = ("max_episode_steps", "disable_env_checker")
# {Gymnasium's wrappers that normalise: the flag that does}.
_NORMALIZERS = {
    "NormalizeReward": "--value_normalization=running",
    "NormalizeObservation": "--observation_normalization=elementwise",
}


def module_of(level_name: str) -> str:
    """Returns the Python module that a level name contains; '' if none."""
    return level_name.removeprefix(_OLD_GYM).rpartition(":")[0]


def find(level_name: str) -> Maker:
    """Returns what makes a level.

    'Env-v0' is a registered level, and so is 'module:Env-v0', after importing the module; the
    modules of MiniGrid, BabyAI and MinAtar need not be named. 'module:name' may also be a function
    or a class of the user. 'gym:Env-v0' is a level of gym 0.26, Gymnasium's predecessor;
    'gym:module:Env-v0' imports the module first.

    Raises:
      ConfigError: there is no such level (the message names near matches), or no such module.
    """
    flag, module = f"--level_name={level_name}", module_of(level_name)
    imported = _import(flag, module) if module else None
    if level_name.startswith(_OLD_GYM):
        return functools.partial(_make_old_gym, level_name)
    name = level_name.rpartition(":")[2]
    if not module:
        _register(name)
    if name in gymnasium.registry:
        return gymnasium.registry[name]
    made_by = getattr(imported, name, None)
    if callable(made_by):
        return made_by
    hint = plug_ins.near(name, vars(imported)) if imported and "-v" not in name else ""
    hint = hint or f"; {near_matches(name, gymnasium.registry)}"
    raise ConfigError(f"{flag}: no such level{hint}")


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


def make(env: EnvironmentConfig, render_mode: str | None = None) -> Environment:
    """Returns one environment of a level, with --level_kwargs and --level_wrappers.

    Args:
      env: the level's flags.
      render_mode: as in Gymnasium.

    Raises:
      ConfigError: there is no such level, the arguments do not fit it, or what its function or a
        wrapper returns is no environment; LevelRaisedError: its code raised.
    """
    flag, maker = f"--level_name={env.level_name}", find(env.level_name)
    try:
        kwargs = _arguments(env, maker, render_mode)
        made = gymnasium.make(maker, **kwargs) if isinstance(maker, EnvSpec) else maker(**kwargs)
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        raise not_made(env, error) from error
    made = _checked(flag, made)
    for name, arguments in level_wrappers(env.level_wrappers):
        wrapper = plug_ins.load("level_wrappers", name)
        form = f"give its arguments as {name}{{...}}, a JSON object"
        _check_arguments(f"--level_wrappers={name}", form, wrapper, (made,), arguments)
        try:
            made = wrapper(made, **arguments)
        except (Exception, SystemExit) as error:
            problem = f"raised {plug_ins.raised(error)}"
            raise ConfigError(f"--level_wrappers={name}: {problem}") from error
        made = _checked(f"--level_wrappers={name}", made)
    check_normalizers("--level_wrappers" if env.level_wrappers else flag, made)
    return made


def wrappers_of(env: Environment | VectorEnv[Any, Any, Any]) -> Iterator[Any]:
    """Yields the wrappers of an environment, the outermost first."""
    while isinstance(env, (gymnasium.Wrapper, VectorWrapper)):
        yield env
        env = env.env


def takes_render_mode(maker: Maker) -> bool:
    """Returns whether a level can be made to render, as far as its signature tells."""
    if isinstance(maker, EnvSpec) and maker.entry_point is None:  # only a vector environment
        return False
    if (signature := _signature(_creator(maker))) is None:
        return True
    takes_any = any(each.kind is each.VAR_KEYWORD for each in signature.parameters.values())
    return takes_any or "render_mode" in signature.parameters


def not_made(env: EnvironmentConfig, error: BaseException) -> ConfigError:
    """Returns the error to raise if a level's code raised while the level was made."""
    flag = f"--level_name={env.level_name}"
    if line := explain_import(flag, error):
        return ConfigError(line)
    if isinstance(error, (gymnasium.error.DependencyNotInstalled, ImportError)):
        return ConfigError(f"{flag}: a package that it needs is not installed: {error}")
    arguments = f" with --level_kwargs={env.level_kwargs}" if env.level_kwargs else ""
    # If the arguments may be wrong, retrying would not help.
    is_permanent = bool(arguments) and isinstance(error, (KeyError, TypeError, ValueError))
    kind = ConfigError if is_permanent else LevelRaisedError
    return kind(f"{flag}{arguments}: raised {plug_ins.raised(error)}")


def check_normalizers(flag: str, env: Environment | VectorEnv[Any, Any, Any]) -> None:
    """Raises ConfigError if a wrapper normalises with statistics of its own.

    Each environment would have others, no checkpoint has them, and returns would be in their units.
    """
    for name in (kind.__name__ for each in wrappers_of(env) for kind in type(each).__mro__):
        if name in _NORMALIZERS:
            raise ConfigError(
                f"{flag}: leave out {name}, whose statistics no checkpoint has and each"
                f" environment has for itself; {_NORMALIZERS[name]} does that for all of a run"
            )


def _import(flag: str, module: str) -> ModuleType:
    plug_ins.look_in_current_folder()
    try:
        return importlib.import_module(module)
    except (Exception, SystemExit) as error:
        line = explain_import(flag, error) or f"{flag}: {plug_ins.cannot_import(module, error)}"
        raise ConfigError(line) from error


def _register(name: str) -> None:
    """Imports the package that registers a level, if the package is in _PACKAGES."""
    for prefix, (package, function) in _PACKAGES.items():
        is_registered = any(level_id.startswith(prefix) for level_id in gymnasium.registry)
        if name.startswith(prefix) and not is_registered:
            module = _import(f"--level_name={name}", package)
            if function:
                getattr(module, function)()


def _make_old_gym(level_name: str, **kwargs: Any) -> Environment:
    try:
        import gym
        import shimmy
    except ImportError as error:
        raise ConfigError(missing_package(f"--level_name={level_name}", "gym")) from error
    # gym's own checker needs NumPy 1.
    old = gym.make(level_name.removeprefix(_OLD_GYM), disable_env_checker=True, **kwargs)
    env: Environment = shimmy.GymV26CompatibilityV0(env=old)
    limit = old.spec.max_episode_steps
    return TimeLimit(env, limit) if limit else env


def _arguments(env: EnvironmentConfig, maker: Maker, render_mode: str | None) -> dict[str, Any]:
    """Returns the arguments for a level. Raises ConfigError if they do not fit it."""
    kwargs = level_kwargs(env.level_kwargs)
    if "render_mode" in kwargs:
        raise ConfigError("--level_kwargs: leave render_mode out; --video decides it")
    if render_mode:
        kwargs["render_mode"] = render_mode
    given, of_level = kwargs, {}
    if isinstance(maker, EnvSpec):
        if not env.level_kwargs:
            return kwargs
        given = {name: value for name, value in kwargs.items() if name not in _OF_GYMNASIUM}
        of_level = maker.kwargs
    elif signature := _signature(maker):
        mode = signature.parameters.get("render_mode")
        if mode is not None and mode.default is mode.empty:
            kwargs["render_mode"] = render_mode
    form = "give --level_kwargs that fit"
    flag = f"--level_name={env.level_name}"
    _check_arguments(flag, form, _creator(maker), (), {**of_level, **given})
    return kwargs


def _check_arguments(
    flag: str, form: str, call: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    """Raises ConfigError, with `form` and the parameters' names, if arguments do not fit."""
    if (signature := _signature(call)) is None:
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        names = ", ".join(list(signature.parameters)[len(args) :])
        raise ConfigError(f"{flag}: {error}; {form} ({names})") from None


def _creator(maker: Maker) -> Callable[..., Any]:
    """Returns the function or class that makes environments."""
    if not isinstance(maker, EnvSpec):
        return maker
    assert maker.entry_point is not None
    entry_point = maker.entry_point
    return load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point


def _signature(call: Callable[..., Any]) -> inspect.Signature | None:
    """Returns a callable's signature; None if it has none, as those of other languages."""
    try:
        return inspect.signature(call)
    except (TypeError, ValueError):
        return None


def _checked(flag: str, made: Any) -> Environment:
    if not isinstance(made, gymnasium.Env):
        kind = type(made).__name__
        raise ConfigError(f"{flag}: must return a gymnasium.Env, but returned {kind}")
    for name in ("observation_space", "action_space"):
        if not isinstance(found := getattr(made, name, None), Space):
            raise ConfigError(f"{flag}: its {name} must be a gymnasium.Space, but is {found!r}")
    return made
