"""What a level's reset and step must return: a first level of one's own often returns less."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Space, Tuple

_NAMES = {
    "reset": ("observation", "info"),
    "step": ("observation", "reward", "terminated", "truncated", "info"),
}
_GYMNASIUM = Path(gymnasium.__file__).parent
_WRAPPERS = (str(_GYMNASIUM), str(Path(__file__).parent))
"""Folders of code that unpacks what a level has returned, before `check` sees it."""
_CHECKERS = (str(_GYMNASIUM / "wrappers"), str(_GYMNASIUM / "utils"))
"""Folders of code that asserts what a level has returned."""


class LevelError(Exception):
    """A level returned something else than it must. The text is a line that names the level."""


@contextlib.contextmanager
def explained(level_name: str, method: str) -> Iterator[None]:
    """A block that calls a level's "reset" or "step"; its LevelErrors name the level.

    Raises:
      LevelError: also if a wrapper cannot unpack what the level has returned.
    """
    try:
        yield
    except LevelError as error:
        raise LevelError(f"{level_name}: {error}") from None
    except (ValueError, TypeError, AssertionError) as error:
        place = traceback.extract_tb(error.__traceback__)[-1].filename
        if isinstance(error, AssertionError) and str(error) and place.startswith(_CHECKERS):
            raise LevelError(f"{level_name}: {error}") from error
        texts = f"values to unpack (expected {len(_NAMES[method])}", "cannot unpack non-iterable"
        if any(text in str(error) for text in texts) and place.startswith(_WRAPPERS):
            raise LevelError(f"{level_name}: {_must_return(method)}") from error
        raise


def check(method: str, result: Any, space: Space[Any]) -> None:
    """Raises LevelError if this is not what a method returns.

    Args:
      method: "reset" or "step".
      result: what it returned.
      space: the level's observations.
    """
    must_return = _must_return(method)
    if not isinstance(result, (tuple, list)):
        raise LevelError(f"{must_return}, but returned {_kind(result)}")
    if len(result) != len(_NAMES[method]):
        raise LevelError(f"{must_return}, but returned {len(result)}")
    if not hasattr(result[-1], "items"):
        raise LevelError(
            f"{method} must return a dictionary as info, but returned {_kind(result[-1])}"
        )
    if method == "step" and not _is_number(result[1]):
        raise LevelError(f"step must return a number as reward, but returned {_kind(result[1])}")
    if problem := _misfit(result[0], space, "an observation"):
        raise LevelError(f"{method} returned {problem}")


def _is_number(value: Any) -> bool:
    try:
        float(np.asarray(value).item())  # as `Simplify` does, and vector environments
    except (TypeError, ValueError):
        return False
    return True


def _must_return(method: str) -> str:
    names = _NAMES[method]
    return f"{method} must return {len(names)} values ({', '.join(names)})"


def _kind(value: Any) -> str:
    return "None" if value is None else type(value).__name__


def _misfit(observation: Any, space: Space[Any], what: str) -> str | None:
    """Returns how an observation differs from its space in form; None if it does not."""
    if isinstance(space, Dict):
        if not _has_names(observation):
            return f"{_kind(observation)} as {what}, but its observation_space is a dictionary"
        for name, part in space.spaces.items():
            try:
                mine = observation[name]
            except (LookupError, ValueError):
                return f"{what} without '{name}', which its observation_space has"
            if found := _misfit(mine, part, f"'{name}' of {what}"):
                return found
        return None
    if observation is None:
        return f"None as {what}"
    if isinstance(space, Tuple):
        if not hasattr(observation, "__len__") or len(observation) != len(space.spaces):
            return f"{what} that is not a tuple of {len(space.spaces)}, as its observation_space is"
        for index, part in enumerate(space.spaces):
            if found := _misfit(observation[index], part, f"part {index} of {what}"):
                return found
        return None
    return _misshaped(observation, space, what) if isinstance(space, Box) else None


def _misshaped(observation: Any, space: Box, what: str) -> str | None:
    try:
        shape = np.shape(observation)
    except ValueError:  # [1, [2, 3]]
        return f"{what} that is not an array, but its observation_space is {space}"
    if shape == space.shape:
        return None
    return f"{what} of shape {shape}, but its observation_space has the shape {space.shape}"


def _has_names(observation: Any) -> bool:
    """Tells whether an observation may have named parts, as dictionaries and NumPy's records do."""
    is_other = isinstance(observation, (np.ndarray, np.number, list, tuple, str))
    return hasattr(observation, "__getitem__") and not is_other
