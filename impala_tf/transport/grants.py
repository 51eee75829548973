"""Grants limit how many actors act at once, to what the learner can use.

Without them, surplus actors would act and then wait to push, while their unrolls become stale.
Instead they wait before acting, and then act with the newest parameters. An actor gets a grant with
the parameters for an unroll. The grant ends when the unroll is in the learner's queue.
"""

from __future__ import annotations

import asyncio
import collections
import time
from collections.abc import Callable, Hashable

FIRST_GRANTS = 32.0  # the limit before any measurement
_WEIGHT = 0.1  # of a new unroll in the running means
# How long unrolls should wait for room in the queue, as multiples of the time that an unroll takes.
# Below the first, the limit grows; above the second, it shrinks. Some unrolls must wait, or the
# learner would starve.
_LEAST_WAIT, _MOST_WAIT = 0.5, 1.0
# Changes of the limit for each unroll that arrives. It shrinks more slowly than it grows, because
# too many grants only make unrolls a little older, but too few starve the learner.
_STEP_UP, _STEP_DOWN = 0.5, 0.1

Grant = tuple[Hashable, int]  # session, and the number of the unroll in it


class GrantLimit:
    """An adaptive limit on the number of grants.

    Args:
      least: the smallest limit.
      first: the initial limit, if it is larger than `least`.

    Attributes:
      limit: the current limit.
      unroll_s: mean time to make and send an unroll, in seconds; 0 before the first one.
    """

    def __init__(self, least: int, first: float = FIRST_GRANTS) -> None:
        self._least = float(least)
        self.limit = max(self._least, first)
        self.unroll_s = self._waited_s = 0.0

    def observe(self, unroll_s: float, waited_s: float, more_wanted: bool) -> None:
        """Adjusts the limit after an unroll has been put into the queue.

        Args:
          unroll_s: how long it took to make and send it, in seconds.
          waited_s: how long it then waited for room, in seconds.
          more_wanted: whether an actor waits for a grant.
        """
        weight = _WEIGHT if self.unroll_s else 1.0
        self.unroll_s += weight * (unroll_s - self.unroll_s)
        self._waited_s += weight * (waited_s - self._waited_s)
        if self._waited_s > _MOST_WAIT * self.unroll_s:
            self.limit = max(self._least, self.limit - _STEP_DOWN)
        elif self._waited_s < _LEAST_WAIT * self.unroll_s and more_wanted:
            self.limit += _STEP_UP


class Grants:
    """The grants of one learner's actors. Not thread-safe: use it in one event loop.

    Args:
      limit: how many grants there may be at once; None: any number.
      clock: returns the time in seconds.
    """

    def __init__(
        self, limit: GrantLimit | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limit = limit
        self._clock = clock
        self._given: dict[Grant, float] = {}  # when each was given
        self._arrived: dict[Grant, float] = {}  # when each unroll arrived that waits for room
        self._waiting: collections.deque[tuple[Grant, asyncio.Future[None]]] = collections.deque()

    async def wait(self, session: Hashable, sequence: int) -> None:
        """Waits until an actor may make an unroll. Who is cancelled meanwhile gets no grant.

        Args:
          session: the actor's session.
          sequence: the unroll's number in it.
        """
        grant = session, sequence
        if self._limit is None or grant in self._given:
            return
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((grant, future))
        self._give()
        await future

    def arrived(self, session: Hashable, sequence: int) -> None:
        """Notes that an unroll has arrived and now waits for room in the queue."""
        grant = session, sequence
        if grant in self._given:
            self._arrived.setdefault(grant, self._clock())

    def ended(
        self, session: Hashable, sequence: int, in_queue: bool, blocked_s: float = 0.0
    ) -> None:
        """Ends a grant.

        Args:
          session: the actor's session.
          sequence: the unroll's number in it.
          in_queue: whether the unroll is in the queue; False: it was not used.
          blocked_s: how long the finished unroll waited at the actor until the previous one was in
            the queue, in seconds.
        """
        grant = session, sequence
        given, arrived = self._given.pop(grant, None), self._arrived.pop(grant, None)
        if self._limit is None or given is None:
            return
        if in_queue and arrived is not None:
            blocked_s = min(max(0.0, blocked_s), arrived - given)
            waited_s = blocked_s + self._clock() - arrived
            more_wanted = any(not future.done() for _, future in self._waiting)
            self._limit.observe(arrived - given - blocked_s, waited_s, more_wanted)
        self._give()

    def lost(self, session: Hashable) -> None:
        """Ends a lost actor's grants, except those whose unrolls have arrived."""
        for grant in list(self._given):
            if grant[0] is session and grant not in self._arrived:
                del self._given[grant]
        self._give()

    def _give(self) -> None:
        while self._limit and self._waiting and len(self._given) < self._limit.limit:
            grant, future = self._waiting.popleft()
            if not future.done():  # else its actor is lost
                self._given[grant] = self._clock()
                future.set_result(None)
