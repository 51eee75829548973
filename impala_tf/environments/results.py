"""What a level's reset and step must return: a first level of one's own often returns less."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Space

_NAMES = {
    "reset": ("observation", "info"),
    "step": ("observation", "reward", "terminated", "truncated", "info"),
}
_WRAPPERS = (str(Path(gymnasium.__file__).parent), str(Path(__file__).parent))
"""Folders of code that unpacks what a level has returned, before `check` sees it."""


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
    except ValueError as error:
        place = traceback.extract_tb(error.__traceback__)[-1].filename
        text = f"values to unpack (expected {len(_NAMES[method])}"
        if text in str(error) and place.startswith(_WRAPPERS):
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
    if problem := _misfit(result[0], space, "an observation"):
        raise LevelError(f"{method} returned {problem}")


def _must_return(method: str) -> str:
    names = _NAMES[method]
    return f"{method} must return {len(names)} values ({', '.join(names)})"


def _kind(value: Any) -> str:
    return "None" if value is None else type(value).__name__


def _misfit(observation: Any, space: Space[Any], what: str) -> str | None:
    """Returns how an observation differs from its space in form; None if it does not."""
    if isinstance(space, Dict):
        if not isinstance(observation, Mapping):
            return f"{_kind(observation)} as {what}, but its observation_space is a dictionary"
        for name, part in space.spaces.items():
            if name not in observation:
                return f"{what} without '{name}', which its observation_space has"
            if found := _misfit(observation[name], part, f"'{name}' of {what}"):
                return found
    if isinstance(space, Box) and observation is None:
        return f"None as {what}"
    if isinstance(space, Box) and (shape := np.shape(observation)) != space.shape:
        return f"{what} of shape {shape}, but its observation_space has the shape {space.shape}"
    return None
