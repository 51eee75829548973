"""The wrapper around each Gymnasium environment, and what its level may do wrong."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Space

from impala_tf.config import plug_ins
from impala_tf.environments import infos, spaces
from impala_tf.types import EnvironmentSpec

_log = logging.getLogger("impala_tf.environments")

_VALUES = {
    "reset": "2 values (observation, info)",
    "step": "5 values (observation, reward, terminated, truncated, info)",
}


class LevelError(Exception):
    """A level returned a wrong result. The message is a line that names the level."""


class LevelCodeError(Exception):
    """A level's code raised in a process of its own, or ended it. The message says what."""


class BrokenEnvironmentError(Exception):
    """An environment returned something that no agent can learn from."""


class Simplify(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Converts observations to what agents see, and keeps only the numbers in `info`.

    A step may repeat its action, but not past the end of an episode: it then returns the last
    one's observation, flags and info, and the sum of the rewards.

    Vector environments make arrays of the values in `info`, which fails if these change their type.

    The first reset and the first step raise LevelError if their results do not fit, or if the
    level's code raises what wrong results and wrong code raise; later ones are not checked, to save
    time. Images with NaN raise BrokenEnvironmentError at every step.

    Args:
      env: the environment.
      spec: the level's.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], spec: EnvironmentSpec) -> None:
        super().__init__(env)
        self._level_name, self._repeats = spec.level_name, spec.frames_per_step
        _, self._convert = spaces.view(env.observation_space, spec.offsets)
        self.observation_space = spaces.space_of(spec)
        self._unchecked = {"reset", "step"}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Resets the environment; see `gymnasium.Env.reset`."""
        # A vector environment that resets only some environments passes {} as options.
        settings: dict[str, Any] = {"seed": seed, "options": options or None}
        if "reset" in self._unchecked:
            observation, info = self._checked("reset", **settings)
        else:
            observation, info = self.env.reset(**settings)
        return self._seen(observation, None), infos.only_numbers(info)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Takes an action; see `gymnasium.Env.step`."""
        rewards = 0.0
        for _ in range(self._repeats):
            result = self._checked("step", action) if self._unchecked else self.env.step(action)
            observation, reward, terminated, truncated, info = result
            # With actions of shape (1,), rewards often have it, too; vector environments need
            # numbers.
            rewards += reward if type(reward) is float else float(np.asarray(reward).item())
            if terminated or truncated:
                break
        return (
            self._seen(observation, action),
            rewards,
            bool(terminated),
            bool(truncated),
            infos.only_numbers(info),
        )

    def close(self) -> None:
        """Closes the environment. Errors of the level are only logged, because they do no harm."""
        try:
            self.env.close()
        except (Exception, SystemExit) as error:
            _log.warning("the level's close() raised %s", plug_ins.raised(error))

    def _checked(self, method: str, *args: Any, **settings: Any) -> Any:
        """Returns the result of `env.reset` or `env.step`, if it fits."""
        try:
            result = getattr(self.env, method)(*args, **settings)
            problem = find_problem(method, result, self.env.observation_space)
        except (AssertionError, TypeError, ValueError) as error:
            # Such as a wrapper that unpacks five values where there are four.
            problem = f"{method} must return {_VALUES[method]}, but raised {plug_ins.raised(error)}"
            raise LevelError(f"{self._level_name}: {problem}") from error
        if problem:
            raise LevelError(f"{self._level_name}: {problem}")
        self._unchecked.discard(method)
        return result

    def _seen(self, observation: Any, action: Any) -> Any:
        try:
            return self._convert(observation)
        except FloatingPointError as error:
            # Not before: to write an array as text takes longer than many levels' steps.
            after = "the reset" if action is None else f"action {action}"
            raise BrokenEnvironmentError(f"{self._level_name}: {error} after {after}") from None


def find_problem(method: str, result: Any, space: Space[Any]) -> str:
    """Returns what is wrong with a result of a level, as often in a first one; '': nothing.

    Gymnasium's own checker only warns about most of this. The numbers of a `Box` are not compared
    with its bounds, which many levels do not keep.

    Args:
      method: "reset" or "step".
      result: what it returned.
      space: the level's observations.
    """
    if not isinstance(result, (tuple, list)) or len(result) != int(_VALUES[method][0]):
        kind = len(result) if isinstance(result, (tuple, list)) else _kind(result)
        return f"{method} must return {_VALUES[method]}, but returned {kind}"
    if not isinstance(result[-1], Mapping):
        return f"{method} must return a dictionary as info, not {_kind(result[-1])}"
    if method == "step":
        reward = np.asarray(result[1])
        if reward.dtype.kind not in "biuf" or reward.size != 1:
            return f"step must return a number as reward, not {_kind(result[1])}"
    try:
        for name, part, value in spaces.named_parts(space, result[0]):
            if not _fits(value, part):
                array = isinstance(value, np.ndarray) and value.size > 1
                shown = f"{value.dtype} of shape {value.shape}" if array else repr(value)
                name = f"{name!r} of an observation" if name else "an observation"
                return f"{method} returned {name}: {shown}, but its observation_space is {space}"
    except (LookupError, TypeError, ValueError) as error:
        return f"{method} returned an observation ({_kind(result[0])}) without the part {error}"
    return ""


def _fits(value: Any, space: Space[Any]) -> bool:
    if isinstance(space, Box):
        try:
            array = np.asarray(value)
        except ValueError:  # [1, [2, 3]]
            return False
        # Images of other dtypes are scaled to uint8.
        is_scaled = space.dtype != np.uint8 and len(space.shape) > 2
        is_same_kind = np.can_cast(array.dtype, space.dtype, "same_kind")
        return array.shape == space.shape and (is_scaled or is_same_kind)
    if isinstance(space, (Discrete, MultiBinary, MultiDiscrete)):
        is_single = isinstance(value, np.ndarray) and value.size == 1
        return bool(space.contains(value.item() if is_single else value))
    return value is not None


def _kind(value: Any) -> str:
    return "None" if value is None else type(value).__name__
