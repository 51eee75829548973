"""The types of flags: which numbers one may have, and whether its default follows from others."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

T = TypeVar("T")


class Range(NamedTuple):
    """The numbers that a flag may have."""

    wanted: str
    """In words, after "must be"."""
    fits: Callable[[float], bool]


Positive = Annotated[T, Range("greater than 0", lambda value: value > 0)]
NotNegative = Annotated[T, Range("0 or more", lambda value: value >= 0)]
Share = Annotated[T, Range("between 0 and 1", lambda value: 0 <= value <= 1)]

if TYPE_CHECKING:
    Derived = Annotated[T, "derived"]
else:  # the parser sees that the flag may be left out
    Derived = Annotated[T | None, "derived"]
DERIVED: Any = None
"""The value of such a flag until `defaults.resolve` finds its default."""
