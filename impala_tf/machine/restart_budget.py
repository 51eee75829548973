"""How often a failing process may be restarted, and after which pause.

Standard library only, like `supervision`.
"""

from __future__ import annotations

import time
from collections.abc import Callable

_QUICK_S, _GOOD_S, _HOUR_S = 60.0, 600.0, 3600.0


class RestartBudget:
    """Limits how often a process is restarted in an hour, with a pause before each restart."""

    def __init__(self, per_hour: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_hour = per_hour
        self._clock = clock
        self._spent: list[float] = []
        self._quick_failures = 0

    def pause_s(self, ran_s: float) -> float | None:
        """Returns the pause before the next restart; None if no restart is left in this hour.

        The pauses grow from 2 s to 2 minutes while every run fails within a minute. After ten good
        minutes, the whole budget is available again.
        """
        now = self._clock()
        if ran_s >= _GOOD_S:
            self.refill()
        self._spent = [moment for moment in self._spent if now - moment < _HOUR_S]
        if self._per_hour is not None and len(self._spent) >= self._per_hour:
            return None
        self._spent.append(now)
        if ran_s >= _QUICK_S:
            self._quick_failures = 0
            return 1.0
        self._quick_failures += 1
        return float(min(2 * 3 ** min(self._quick_failures - 1, 9), 120))

    def refill(self) -> None:
        """Makes the whole budget available again, and the next pause short."""
        self._spent.clear()
        self._quick_failures = 0
