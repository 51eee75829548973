"""Reads --info_metrics from the `info` of an episode's last step."""

from __future__ import annotations

import contextlib
import logging
import math
import numbers
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

_log = logging.getLogger("impala_tf.environments")

OWN = ", of impala_tf"
"""The suffix of the keys of `info` that this project adds."""
PARTS = "parts of several levels"
"""Key of `info` in `many_levels`: [(number of environments, their info), ...]."""
_FINAL = "final_info"  # Gymnasium's, with SAME_STEP autoreset
_MOST_NAMES = 30

Info = Mapping[str, Any]


class InfoMetrics:
    """Reads numbers from the `info` of vector environments.

    Args:
      names: keys of `info`; 'a/b' is the key b of the dictionary a, if there is no key 'a/b'.
      level_name: the level's name, for the warning.
      warns: whether to warn once, after the first episode, about names that are missing.
    """

    def __init__(self, names: Sequence[str], level_name: str = "", *, warns: bool = False) -> None:
        self._names = tuple(names)
        self._level_name = level_name
        self._warns = warns and bool(names)

    def of(self, info: Info, number: int, same_step: bool) -> tuple[float | None, ...]:
        """Returns the numbers of an episode that has just ended, in the order of the names.

        Args:
          info: the info of the step that ended it, as Gymnasium's vector environments return it.
          number: the environment's number.
          same_step: whether the environment has SAME_STEP autoreset.

        Returns:
          a float for each name; None if it is missing or not a finite number.
        """
        if not self._names:
            return ()
        last, number = _own(info, number)
        if same_step:
            last = last.get(_FINAL, {})
        values = tuple(_named(last, name, number) for name in self._names)
        if self._warns:
            self._warns = False
            self._warn(values, last, number)
        return values

    def _warn(self, values: Sequence[float | None], info: Info, number: int) -> None:
        missing = [n for n, value in zip(self._names, values, strict=True) if value is None]
        if missing:
            present = sorted(_numeric_names(info, number))[:_MOST_NAMES]
            _log.warning(
                "--info_metrics: the info of %s has no number %s at the end of an episode;"
                " it has: %s",
                self._level_name, ", ".join(missing), ", ".join(present) or "none",
            )  # fmt: skip


def only_numbers(info: Info) -> dict[str, Any]:
    """Returns the numbers in one environment's `info` and its dictionaries, as floats.

    Those of inner dictionaries get names like "outer/inner": vector environments cannot hold a
    number and a dictionary of the same name, which two environments may have in one step.
    """
    result: dict[str, Any] = {}
    for name, value in info.items():
        if not isinstance(name, str):
            continue
        if isinstance(value, Mapping):
            inner = only_numbers(value).items()
            result |= {f"{name}/{key}": number for key, number in inner}
        elif isinstance(value, (numbers.Real, np.bool_)) or _is_single_number(value):
            with contextlib.suppress(OverflowError):  # a very large int
                result[name] = float(value)
    return result


def _is_single_number(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.ndim == 0 and value.dtype.kind in "biuf"


def _own(info: Info, number: int) -> tuple[Info, int]:
    """Returns the info of the part that an environment belongs to, and its number there."""
    for count, part in info.get(PARTS, ()):
        if number < count:
            return part, number
        number -= count
    return info, number


def _named(info: Info, name: str, number: int) -> float | None:
    return _number(info, [name] if name in info else name.split("/"), number)


def _number(info: Info, path: Sequence[str], number: int) -> float | None:
    value: Any = info
    for name in path:
        if not isinstance(value, Mapping) or name not in value:
            return None
        mask = value.get(f"_{name}")
        if isinstance(mask, np.ndarray) and not mask[number]:
            return None
        value = value[name]
    return _finite(value, number)


def _finite(value: Any, number: int) -> float | None:
    """Returns one environment's number in an array [N]; None if it is not a finite number."""
    if np.ndim(value) != 1 or len(value) <= number:
        return None
    element = value[number]
    if not isinstance(element, (numbers.Real, np.bool_)):
        return None
    return float(element) if math.isfinite(element) else None


def _numeric_names(info: Info, number: int, before: tuple[str, ...] = ()) -> Iterator[str]:
    for name, value in info.items():
        if name.endswith(OWN):
            continue
        if isinstance(value, Mapping):
            yield from _numeric_names(value, number, (*before, name))
        elif _number(info, [name], number) is not None and name.removeprefix("_") not in (
            set(info) - {name}
        ):
            yield "/".join((*before, name))
