"""Which learner an actor calls: its own, or another one while its own is away."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence


def preferred(task: int, learners: int) -> list[int]:
    """Returns the numbers of all learners in the order in which an actor prefers them.

    The first one is its own. The second choices of a learner's actors are spread over all others.

    Args:
      task: the actor's number.
      learners: how many learners the run has.
    """
    own, others = task % learners, learners - 1
    return [own, *((own + 1 + (task // learners + n) % others) % learners for n in range(others))]


def responsible(order: Sequence[int], members: Collection[int], number: int) -> int:
    """Returns which learner an actor is to call.

    Args:
      order: as `preferred` gives it; () if the actor knows only one learner.
      members: the learners that train.
      number: the learner that the actor has called.
    """
    return next((each for each in order if each in members), number)


class Route:
    """The learners that an actor knows, and the one that it calls now. Thread-safe.

    Args:
      addresses: (number, host:port) of the learners, in the order in which it prefers them.
      patience_s: a learner that has not answered for this long is away. Longer than the start of a
        learner takes: usually its whole group has restarted.
      next_s: for how long each of the others is then tried.
      on_move: called with (number, host:port) of the learner that is called from then on.
      clock: in seconds.
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
        """The numbers of the learners, for the handshake; [] if there is one."""
        return [number for number, _ in self._addresses] if len(self._addresses) > 1 else []

    def answered(self) -> None:
        """Notes that the learner is there."""
        self._silent_since_s = None

    def failed(self) -> bool:
        """Notes that the learner did not answer; returns whether another one is to be called."""
        with self._lock:
            now = self._clock()
            if self._silent_since_s is None:
                self._silent_since_s = now
            if now - self._silent_since_s < self._allowed_s or len(self._addresses) == 1:
                return False
            self._go((self._place + 1) % len(self._addresses), self._next_s)
        return True

    def go_to(self, number: int) -> bool:
        """Calls the learner that another one has named; returns whether that is a change.

        Raises:
          ValueError: there is no such learner.
        """
        with self._lock:
            place = [each for each, _ in self._addresses].index(number)
            if place == self._place:
                return False
            self._go(place, self._patience_s)
        self._on_move(*self._addresses[place])
        return True

    def _go(self, place: int, allowed_s: float) -> None:
        self._place, self._allowed_s, self._silent_since_s = place, allowed_s, None
