"""The type of a flag whose value follows from others, if it is not given; see `defaults`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, TypeVar

T = TypeVar("T")

if TYPE_CHECKING:
    Derived = Annotated[T, "derived"]
else:  # the parser sees that the flag may be left out
    Derived = Annotated[T | None, "derived"]
DERIVED: Any = None
"""The default of a flag whose value follows from others, until it is resolved."""
