"""Which learners of a run train together: a learner's supervisor tells it in a variable."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import NamedTuple

_VARIABLE = "IMPALA_TF_GROUP"


class Members(NamedTuple):
    """The learners that train together."""

    numbers: tuple[int, ...]
    """In ascending order, which is that of their ranks."""
    away_since_unix_s: Mapping[int, float] = {}
    """Of the other learners of the run."""


def variables(members: Members) -> dict[str, str]:
    """Returns what a supervisor adds to a learner's environment."""
    return {_VARIABLE: json.dumps(members)}


def from_environment() -> Members | None:
    """Returns what this learner was told; None: it has no supervisor, or is the only one."""
    text = os.environ.get(_VARIABLE)
    if text is None:
        return None
    numbers, away = json.loads(text)
    return Members(tuple(numbers), {int(number): since for number, since in away.items()})
