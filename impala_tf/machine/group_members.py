"""Which learners of a run train together. A supervisor tells its learner in a variable."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import NamedTuple

_VARIABLE = "IMPALA_TF_GROUP"


class Members(NamedTuple):
    """The learners that train together."""

    numbers: tuple[int, ...]
    """In ascending order, which is the order of their ranks."""
    away_since_unix_s: Mapping[int, float] = {}
    """{number of another learner of the run: since when it is away}."""


def variables(members: Members) -> dict[str, str]:
    """Returns the variables that a supervisor adds to a learner's environment."""
    return {_VARIABLE: json.dumps(members)}


def from_environment() -> Members | None:
    """Returns the members from the environment; None without a supervisor or other learners."""
    text = os.environ.get(_VARIABLE)
    if text is None:
        return None
    numbers, away = json.loads(text)
    return Members(tuple(numbers), {int(number): since for number, since in away.items()})
