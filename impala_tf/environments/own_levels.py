"""Makes one environment of a level, with the user's arguments and wrappers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import gymnasium
from gymnasium import Space
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.vector import VectorEnv, VectorWrapper

from impala_tf.config import ConfigError, EnvironmentConfig, LevelRaisedError, plug_ins
from impala_tf.config.plug_ins import level_kwargs, level_wrappers
from impala_tf.environments.registered import Maker, find
from impala_tf.environments.suite import explained

Environment = gymnasium.Env[Any, Any]

# Arguments that Gymnasium itself takes, for any registered level.
_OF_GYMNASIUM = ("max_episode_steps", "disable_env_checker")
# {Gymnasium's wrappers that normalise: the flag that does}.
_NORMALIZERS = {
    "NormalizeReward": "--value_normalization=running",
    "NormalizeObservation": "--observation_normalization=elementwise",
}


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
    made = _environment(flag, made)
    for name, arguments in level_wrappers(env.level_wrappers):
        made = _wrapped(name, arguments, made)
    check_normalizers("--level_wrappers" if env.level_wrappers else flag, made)
    return made


def wrappers_of(env: Environment | VectorEnv[Any, Any, Any]) -> Iterator[Any]:
    """Yields the wrappers of an environment, the outermost first."""
    while isinstance(env, (gymnasium.Wrapper, VectorWrapper)):
        yield env
        env = env.env


def described(env: EnvironmentConfig) -> str:
    """Returns a level's name with its arguments and wrappers, for the protocol."""
    kwargs = f" {env.level_kwargs}" if env.level_kwargs else ""
    wrappers = f" wrapped by {env.level_wrappers}" if env.level_wrappers.strip() else ""
    return f"{env.level_name}{kwargs}{wrappers}"


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
    if line := explained(flag, error):
        return ConfigError(line)
    if isinstance(error, (gymnasium.error.DependencyNotInstalled, ImportError)):
        return ConfigError(f"{flag}: a package that it needs is not installed: {error}")
    arguments = f" with --level_kwargs={env.level_kwargs}" if env.level_kwargs else ""
    # If the arguments may be wrong, retrying would not help.
    is_permanent = bool(arguments) and isinstance(error, (KeyError, TypeError, ValueError))
    kind = ConfigError if is_permanent else LevelRaisedError
    return kind(f"{flag}{arguments}: raised {plug_ins.raised(error)}")


def _arguments(env: EnvironmentConfig, maker: Maker, render_mode: str | None) -> dict[str, Any]:
    """Returns the arguments for a level. Raises ConfigError if they do not fit it."""
    kwargs = level_kwargs(env.level_kwargs)
    if "render_mode" in kwargs:
        raise ConfigError("--level_kwargs: leave render_mode out; --video decides it")
    if render_mode:
        kwargs["render_mode"] = render_mode
    is_registered = isinstance(maker, EnvSpec)
    if is_registered and not env.level_kwargs:
        return kwargs
    if (signature := _signature(_creator(maker))) is None:
        return kwargs
    parameter = signature.parameters.get("render_mode")
    if parameter and parameter.default is parameter.empty:
        kwargs["render_mode"] = render_mode
    others = _OF_GYMNASIUM if is_registered else ()
    given = {name: value for name, value in kwargs.items() if name not in others}
    try:
        signature.bind(**(maker.kwargs if isinstance(maker, EnvSpec) else {}) | given)
    except TypeError as error:
        raise ConfigError(
            f"--level_name={env.level_name}: {error}; give --level_kwargs that fit"
            f" ({', '.join(signature.parameters)})"
        ) from None
    return kwargs


def _creator(maker: Maker) -> Callable[..., Any]:
    """Returns the function or class that makes environments."""
    if not isinstance(maker, EnvSpec):
        return maker
    assert maker.entry_point is not None
    entry_point = maker.entry_point
    return load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point


def _signature(make: Callable[..., Any]) -> inspect.Signature | None:
    """Returns a callable's signature; None if it has none, as those of other languages."""
    try:
        return inspect.signature(make)
    except (TypeError, ValueError):
        return None


def _wrapped(name: str, arguments: Mapping[str, Any], env: Environment) -> Environment:
    flag, wrapper = f"--level_wrappers={name}", plug_ins.load("level_wrappers", name)
    if (signature := _signature(wrapper)) is not None:
        try:
            signature.bind(env, **arguments)
        except TypeError as error:
            raise ConfigError(
                f"{flag}: {error}; give its arguments as {name}{{...}}, a JSON object"
                f" ({', '.join(list(signature.parameters)[1:])})"
            ) from None
    try:
        made = wrapper(env, **arguments)
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{flag}: raised {plug_ins.raised(error)}") from error
    return _environment(flag, made)


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


def _environment(flag: str, made: Any) -> Environment:
    if not isinstance(made, gymnasium.Env):
        raise ConfigError(
            f"{flag}: must return a gymnasium.Env, but returned {type(made).__name__}"
        )
    for name in ("observation_space", "action_space"):
        if not isinstance(found := getattr(made, name, None), Space):
            raise ConfigError(f"{flag}: its {name} must be a gymnasium.Space, but is {found!r}")
    return made
