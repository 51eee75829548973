"""The type of a flag whose default follows from other flags; see `defaults`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, TypeVar

T = TypeVar("T")

if TYPE_CHECKING:
    Derived = Annotated[T, "derived"]
else:  # the parser sees that the flag may be left out
    Derived = Annotated[T | None, "derived"]
DERIVED: Any = None
"""The value of such a flag until `defaults.resolve` finds its default."""
