"""Decides which learner an actor calls: its own, or another while its own is away."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence


def preferred(task: int, learners: int) -> list[int]:
    """Returns the numbers of all learners in an actor's order of preference.

    The first is its own. The second choices of a learner's actors are spread over all others.

    Args:
      task: the actor's number.
      learners: the number of learners of the run.
    """
    own, others = task % learners, learners - 1
    return [own, *((own + 1 + (task // learners + n) % others) % learners for n in range(others))]


class Route:
    """The learners that an actor knows, and the one that it calls now. Thread-safe.

    Args:
      addresses: (number, host:port) of the learners, in the actor's order of preference.
      patience_s: for how many seconds a learner may not answer before it counts as away. More than
        a learner takes to start: usually its whole group has restarted.
      next_s: for how many seconds each other learner is then tried.
      on_move: called with (number, host:port) of the new learner when `go_to` changes it.
      clock: returns the time in seconds.
    """

    def __init__(
        self,
        addresses: Sequence[tuple[int, str]],
        patience_s: float = 20.0,
        next_s: float = 5.0,
        on_move: Callable[[int, str], None] = lambda number, address: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._addresses = list(addresses)
        self._patience_s = patience_s
        self._next_s = next_s
        self._on_move = on_move
        self._clock = clock
        self._lock = threading.Lock()
        self._place = 0
        self._allowed_s = patience_s
        self._silent_since_s: float | None = None

    @property
    def address(self) -> str:
        """host:port of the learner to call."""
        return self._addresses[self._place][1]

    @property
    def order(self) -> list[int]:
        """The numbers of the learners, for the handshake; [] if there is only one."""
        return [number for number, _ in self._addresses] if len(self._addresses) > 1 else []

    def answered(self) -> None:
        """Notes that the learner has answered."""
        self._silent_since_s = None

    def failed(self) -> bool:
        """Notes that the learner did not answer; returns whether to call another one now."""
        with self._lock:
            now = self._clock()
            if self._silent_since_s is None:
                self._silent_since_s = now
            if now - self._silent_since_s < self._allowed_s or len(self._addresses) == 1:
                return False
            self._go((self._place + 1) % len(self._addresses), self._next_s)
        return True

    def go_to(self, number: int) -> bool:
        """Switches to the learner that another learner has named; returns whether it is a change.

        Raises:
          ValueError: there is no such learner.
        """
        with self._lock:
            place = [known for known, _ in self._addresses].index(number)
            if place == self._place:
                return False
            self._go(place, self._patience_s)
        self._on_move(*self._addresses[place])
        return True

    def _go(self, place: int, allowed_s: float) -> None:
        self._place, self._allowed_s, self._silent_since_s = place, allowed_s, None
