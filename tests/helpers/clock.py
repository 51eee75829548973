"""A clock that a test moves."""

from __future__ import annotations


class Clock:
    """Stands still until a test sets `now`, in seconds."""

    def __init__(self, now: float = 500.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now
