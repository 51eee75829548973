"""Checks what a level's reset and step return, which is often wrong in a user's first level."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple

_NAMES = {
    "reset": ("observation", "info"),
    "step": ("observation", "reward", "terminated", "truncated", "info"),
}
_GYMNASIUM = Path(gymnasium.__file__).parent
_WRAPPERS = (str(_GYMNASIUM), str(Path(__file__).parent))
"""Folders of code that unpacks a level's results before `check` sees them."""
_CHECKERS = (str(_GYMNASIUM / "wrappers"), str(_GYMNASIUM / "utils"))
"""Folders of code that asserts properties of a level's results."""


class LevelError(Exception):
    """A level returned a wrong result. The message is a line that names the level."""


class BrokenEnvironmentError(Exception):
    """An environment returned something that no agent can learn from."""


@contextlib.contextmanager
def explained(level_name: str, method: str) -> Iterator[None]:
    """Wraps a call of a level's "reset" or "step", so that LevelErrors name the level.

    Raises:
      LevelError: raised inside, or a wrapper could not use what the level returned.
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
    """Raises LevelError if a method has returned a wrong result.

    Args:
      method: "reset" or "step".
      result: what the method returned.
      space: the level's observation space.
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
    if np.asarray(value).dtype.kind in "US":  # NumPy reads digits in a text as a number
        return False
    try:
        float(np.asarray(value).item())  # as `Simplify` and vector environments do
    except (TypeError, ValueError):
        return False
    return True


def _must_return(method: str) -> str:
    names = _NAMES[method]
    return f"{method} must return {len(names)} values ({', '.join(names)})"


def _kind(value: Any) -> str:
    return "None" if value is None else type(value).__name__


def _misfit(observation: Any, space: Space[Any], what: str) -> str | None:
    """Returns how an observation does not fit its space; None if it fits.

    The numbers of a `Box` are not compared with its bounds, which many levels do not keep.
    """
    if isinstance(space, Dict):
        if not _has_names(observation):
            return f"{_kind(observation)} as {what}, but its observation_space is a dictionary"
        for name, part in space.spaces.items():
            try:
                value = observation[name]
            except (LookupError, ValueError):
                return f"{what} without '{name}', which its observation_space has"
            if problem := _misfit(value, part, f"'{name}' of {what}"):
                return problem
        return None
    if observation is None:
        return f"None as {what}"
    if isinstance(space, Tuple):
        if not hasattr(observation, "__len__") or len(observation) != len(space.spaces):
            return f"{what} that is not a tuple of {len(space.spaces)}, as its observation_space is"
        for index, part in enumerate(space.spaces):
            if problem := _misfit(observation[index], part, f"part {index} of {what}"):
                return problem
        return None
    if isinstance(space, Box):
        return _misshaped(observation, space, what)
    if isinstance(space, (Discrete, MultiDiscrete, MultiBinary)):
        return _no_choice(observation, space, what)
    return None


def _misshaped(observation: Any, space: Box, what: str) -> str | None:
    try:
        array = np.asarray(observation)
    except ValueError:  # [1, [2, 3]]
        return f"{what} that is not an array, but its observation_space is {space}"
    if array.shape != space.shape:
        return (
            f"{what} of shape {array.shape}, but its observation_space has the shape {space.shape}"
        )
    # Images of other dtypes are scaled to uint8; see `images`.
    is_scaled = space.dtype != np.uint8 and len(space.shape) > 2
    if is_scaled or np.can_cast(array.dtype, space.dtype, "same_kind"):
        return None
    return f"{what} of {array.dtype}, but its observation_space has the dtype {space.dtype}"


def _no_choice(
    observation: Any, space: Discrete | MultiDiscrete | MultiBinary, what: str
) -> str | None:
    """Returns how an observation is not one of the choices of a space; None if it is one."""
    try:
        array = np.asarray(observation)
    except ValueError:
        array = np.empty(0, object)
    is_single = isinstance(space, Discrete) and array.size == 1  # [2] may be meant as 2
    fits = array.dtype.kind in "biu" and (is_single or array.shape == space.shape)
    if fits:
        first, count = _choices(space)
        places = array.astype(np.int64) - first
        fits = bool(np.all((places >= 0) & (places < count)))
    return None if fits else f"{observation!r} as {what}, but its observation_space is {space}"


def _choices(space: Discrete | MultiDiscrete | MultiBinary) -> tuple[Any, Any]:
    """Returns the first choice of each number of a space, and how many there are."""
    if isinstance(space, MultiBinary):
        return 0, 2
    return space.start, space.n if isinstance(space, Discrete) else space.nvec


def _has_names(observation: Any) -> bool:
    """Returns whether an observation may have named parts, like dictionaries and NumPy records."""
    is_other = isinstance(observation, (np.ndarray, np.number, list, tuple, str))
    return hasattr(observation, "__getitem__") and not is_other
