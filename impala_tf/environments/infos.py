"""What is kept of an environment's `info`: numbers, of which --info_metrics reads some."""

from __future__ import annotations

import logging
import math
import numbers
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

_log = logging.getLogger("impala_tf.environments")

OWN = ", of impala_tf"
"""The suffix of the keys of `info` that this project adds."""
PARTS = "parts of several levels"
"""Key of `info` in `many_levels`: [(number of environments, their info), ...]."""

Info = Mapping[str, Any]


class InfoMetrics:
    """Reads numbers from the `info` of vector environments.

    Args:
      names: keys of `info`; 'a/b' is also the key b of the dictionary a.
      level_name: the level's name, to warn once, after the first episode, about names that are
        missing; '': there is no warning.
    """

    def __init__(self, names: Sequence[str], level_name: str = "") -> None:
        self._names = tuple(names)
        self._level_name = level_name

    def read(self, info: Info, number: int) -> tuple[float | None, ...]:
        """Returns the numbers of an episode that has just ended, in the order of the names.

        Args:
          info: the info of the step that ended it, as Gymnasium's vector environments return it.
          number: the environment's number.

        Returns:
          a float for each name; None if it is missing or not a finite number.
        """
        if not self._names:
            return ()
        for count, part in info.get(PARTS, ()):  # of the level that the environment plays
            if number < count:
                info = part
                break
            number -= count
        found = _numbers_of(info, number)
        if self._level_name and (missing := set(self._names) - found.keys()):
            _log.warning(
                "--info_metrics: the info of %s has no number %s at the end of an episode; it has:"
                " %s",
                self._level_name,
                ", ".join(sorted(missing)),
                ", ".join(sorted(found)) or "none",
            )
        self._level_name = ""
        return tuple(found.get(name) for name in self._names)


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
            result |= {f"{name}/{key}": number for key, number in only_numbers(value).items()}
        elif isinstance(value, (numbers.Real, np.bool_)) or _is_single_number(value):
            result[name] = float(value)
    return result


def _is_single_number(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.ndim == 0 and value.dtype.kind in "biuf"


def _numbers_of(info: Info, number: int) -> dict[str, float]:
    """Returns one environment's finite numbers in an info of arrays [N] and dictionaries of them.

    Gymnasium marks in the array `_name` which environments have the number `name`.
    """
    found: dict[str, float] = {}
    for name, value in info.items():
        mask = info.get(f"_{name}")
        is_mask = name.startswith("_") and name[1:] in info
        if is_mask or name.endswith(OWN) or (mask is not None and not mask[number]):
            continue
        if isinstance(value, Mapping):
            inner = _numbers_of(value, number)
            found |= {f"{name}/{key}": each for key, each in inner.items()}
        elif np.ndim(value) == 1 and len(value) > number:
            element = value[number]
            if isinstance(element, (numbers.Real, np.bool_)) and math.isfinite(element):
                found[name] = float(element)
    return found
