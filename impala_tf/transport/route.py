"""Decides which learner an actor calls, and when: another one while its own is away."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Sequence

# Seconds. A learner restarts within a few: call soon at first, then less often. `Route` adds jitter
# to keep hundreds of actors from calling at the same moment.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 10.0
# A short interruption is not reported; a long one repeatedly.
FIRST_REPORT_S, REPORT_INTERVAL_S = 5.0, 60.0
# How long a learner may be unreachable before it counts as away. More than a learner takes to
# start: usually its whole group has restarted. And for how long each other one is then tried.
PATIENCE_S, NEXT_S = 20.0, 5.0

_log = logging.getLogger("impala_tf.actor")


def order_learners(task: int, learners: int) -> list[int]:
    """Returns the numbers of all learners in an actor's order of preference.

    The first is its own. The second choices of a learner's actors are spread over all others.

    Args:
      task: the actor's number.
      learners: the number of learners of the run.
    """
    own, others = task % learners, learners - 1
    return [own, *((own + 1 + (task // learners + n) % others) % learners for n in range(others))]


class Route:
    """The learners that an actor knows, the one that it calls now, and when it calls again.

    Args:
      addresses: (number, host:port) of the learners, in the actor's order of preference.
      give_up_s: how long the actor may be without a learner, in seconds.
      clock: returns the time in seconds.

    Attributes:
      address: host:port of the learner to call.
      order: the numbers of the learners, for the handshake; [] if there is only one.
    """

    def __init__(
        self,
        addresses: Sequence[tuple[int, str]],
        give_up_s: float = float("inf"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._addresses = dict(addresses)
        self._give_up_s = give_up_s
        self._clock = clock
        self._numbers = [number for number, _ in addresses]
        self.order = self._numbers if len(addresses) > 1 else []
        self._silent_since_s: float | None = None  # the learner that is called now
        self._go(self._numbers[0], PATIENCE_S)
        self.note_service()

    def note_answer(self) -> None:
        """Notes that the learner is there."""
        self._silent_since_s = None

    def note_service(self) -> None:
        """Notes that the learner has served the actor; pauses are short again."""
        self._began_s: float | None = None
        self._next_report_s = FIRST_REPORT_S
        self._pause_s = FIRST_PAUSE_S

    def note_failure(self, reason: str, is_unreachable: bool) -> float | None:
        """Notes that a call failed. Perhaps another learner is the next to call.

        Args:
          reason: why, for the log.
          is_unreachable: whether the learner may be away.

        Returns:
          for how many seconds to wait before the next call; None: there should be none.
        """
        now = self._clock()
        self._began_s = now if self._began_s is None else self._began_s
        waited_s = now - self._began_s
        if waited_s >= self._next_report_s:
            self._next_report_s = waited_s + REPORT_INTERVAL_S
            _log.info("%.0f s without the learner: %s", waited_s, reason)
        if waited_s >= self._give_up_s:
            return None
        if is_unreachable and self.order:
            if self._silent_since_s is None:
                self._silent_since_s = now
            if now - self._silent_since_s >= self._allowed_s:
                place = self._numbers.index(self._number) + 1
                self._go(self._numbers[place % len(self._numbers)], NEXT_S)
                self._pause_s = FIRST_PAUSE_S
        pause_s = self._pause_s * random.uniform(0.5, 1.0)
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        return pause_s

    def go_to(self, number: int) -> None:
        """Switches to the learner that another learner has named.

        Raises:
          KeyError: there is no such learner.
        """
        if number != self._number:
            self._go(number, PATIENCE_S)
            _log.info("acting for learner-%d at %s", number, self.address)

    def _go(self, number: int, allowed_s: float) -> None:
        self.address = self._addresses[number]
        self._number, self._allowed_s, self._silent_since_s = number, allowed_s, None
