"""Checks what a level's reset and step return, which is often wrong in a user's first level.

Gymnasium's own checker only warns about most of this, and vector environments name no level.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple

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


def must_return(method: str) -> str:
    """Returns what a method, "reset" or "step", must return, as a sentence."""
    return f"{method} must return {_VALUES[method]}"


def check(method: str, result: Any, space: Space[Any]) -> None:
    """Raises LevelError if a method has returned a wrong result.

    Args:
      method: "reset" or "step".
      result: what the method returned.
      space: the level's observation space.
    """
    if not isinstance(result, (tuple, list)):
        raise LevelError(f"{must_return(method)}, but returned {_kind(result)}")
    if len(result) != int(_VALUES[method][0]):
        raise LevelError(f"{must_return(method)}, but returned {len(result)}")
    if not isinstance(result[-1], Mapping):
        raise LevelError(f"{method} must return a dictionary as info, not {_kind(result[-1])}")
    if method == "step" and not _is_number(result[1]):
        raise LevelError(f"step must return a number as reward, not {_kind(result[1])}")
    if problem := _misfit(result[0], space, "an observation"):
        raise LevelError(f"{method} returned {problem}")


def _is_number(value: Any) -> bool:
    array = np.asarray(value)
    return array.dtype.kind in "biuf" and array.size == 1


def _kind(value: Any) -> str:
    return "None" if value is None else type(value).__name__


def _misfit(observation: Any, space: Space[Any], what: str) -> str | None:
    """Returns how an observation does not fit its space; None if it fits.

    The numbers of a `Box` are not compared with its bounds, which many levels do not keep.
    """
    expected = f"but its observation_space is {space}"
    if isinstance(space, (Dict, Tuple)):
        parts = space.spaces.items() if isinstance(space, Dict) else enumerate(space.spaces)
        for key, part in parts:
            try:
                value = observation[key]
            except (LookupError, TypeError, ValueError):
                return f"{what} ({_kind(observation)}) without the part {key!r}, {expected}"
            if problem := _misfit(value, part, f"{key!r} of {what}"):
                return problem
    elif isinstance(space, Box):
        try:
            array = np.asarray(observation)
        except ValueError:  # [1, [2, 3]]
            return f"{what} that is not an array, {expected}"
        if array.shape != space.shape:
            return f"{what} of shape {array.shape}, {expected}"
        # Images of other dtypes are scaled to uint8; see `images`.
        is_scaled = space.dtype != np.uint8 and len(space.shape) > 2
        if not is_scaled and not np.can_cast(array.dtype, space.dtype, "same_kind"):
            return f"{what} of {array.dtype}, {expected}"
    elif isinstance(space, (Discrete, MultiBinary, MultiDiscrete)):
        is_single = isinstance(observation, np.ndarray) and observation.size == 1
        if not space.contains(observation.item() if is_single else observation):
            return f"{what} {observation!r}, {expected}"
    elif observation is None:
        return f"{what} that is None, {expected}"
    return None
