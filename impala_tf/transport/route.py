"""Decides which learner an actor calls, and when: another one while its own is away."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

_log = logging.getLogger("impala_tf.actor")


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
    """The learners that an actor knows, and the one that it calls now.

    Args:
      addresses: (number, host:port) of the learners, in the actor's order of preference.
      patience_s: for how many seconds a learner may not answer before it counts as away. More than
        a learner takes to start: usually its whole group has restarted.
      next_s: for how many seconds each other learner is then tried.
      clock: returns the time in seconds.

    Attributes:
      address: host:port of the learner to call.
      order: the numbers of the learners, for the handshake; [] if there is only one.
    """

    def __init__(
        self,
        addresses: Sequence[tuple[int, str]],
        patience_s: float = 20.0,
        next_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._addresses = dict(addresses)
        self._patience_s = patience_s
        self._next_s = next_s
        self._clock = clock
        self._numbers = [number for number, _ in addresses]
        self.order = self._numbers if len(addresses) > 1 else []
        self._silent_since_s: float | None = None
        self._go(self._numbers[0], patience_s)

    def answered(self) -> None:
        """Notes that the learner has answered."""
        self._silent_since_s = None

    def failed(self) -> bool:
        """Notes that the learner did not answer; returns whether to call another one now."""
        now = self._clock()
        if self._silent_since_s is None:
            self._silent_since_s = now
        if now - self._silent_since_s < self._allowed_s or not self.order:
            return False
        place = self._numbers.index(self._number) + 1
        self._go(self._numbers[place % len(self._numbers)], self._next_s)
        return True

    def go_to(self, number: int) -> None:
        """Switches to the learner that another learner has named.

        Raises:
          KeyError: there is no such learner.
        """
        if number != self._number:
            self._go(number, self._patience_s)
            _log.info("acting for learner-%d at %s", number, self.address)

    def _go(self, number: int, allowed_s: float) -> None:
        self.address = self._addresses[number]
        self._number, self._allowed_s = number, allowed_s
        self._silent_since_s = None


class RetryTimes(NamedTuple):
    """When an actor calls again, and when it says so; in seconds."""

    # A learner restarts within seconds: call soon at first, then less often. `Retries` adds jitter
    # to keep hundreds of actors from calling at the same moment.
    first_pause_s: float = 0.2
    longest_pause_s: float = 10.0
    # A short interruption is not reported; a long one repeatedly.
    first_report_s: float = 5.0
    report_interval_s: float = 60.0
    give_up_s: float = float("inf")


class Retries:
    """The pauses between calls to a learner that does not serve the actor."""

    def __init__(self, times: RetryTimes) -> None:
        self._times = times
        self.succeed()

    def succeed(self) -> None:
        """Begins anew: the learner has served the actor."""
        self._began_s: float | None = None
        self._next_report_s = self._times.first_report_s
        self.hurry()

    def hurry(self) -> None:
        """Starts again with the shortest pause."""
        self._pause_s = self._times.first_pause_s

    def wait(self, reason: str, interrupted: threading.Event) -> bool:
        """Waits before the next call, until `interrupted`; returns whether to call once more."""
        now = time.monotonic()
        self._began_s = self._began_s or now
        waited_s = now - self._began_s
        if waited_s >= self._next_report_s:
            self._next_report_s = waited_s + self._times.report_interval_s
            _log.info("%.0f s without the learner: %s", waited_s, reason)
        if waited_s >= self._times.give_up_s:
            return False
        interrupted.wait(self._pause_s * random.uniform(0.5, 1.0))
        self._pause_s = min(2 * self._pause_s, self._times.longest_pause_s)
        return True
