"""A clock for recorders; the fixture `clock` of conftest.py hands it out."""

from __future__ import annotations


class Clock:
    """Stands still until it is told, by a new `now` in seconds."""

    def __init__(self) -> None:
        self.now = 500.0

    def __call__(self) -> float:
        return self.now
