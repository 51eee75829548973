"""Which actors may act: no more than the learner can use.

The other actors would wait after acting, with unrolls that get older and older. So they wait before
it, and then act with the newest parameters. An actor gets a grant with the parameters for an
unroll, and gives it back when the unroll is in the learner's queue.
"""

from __future__ import annotations

import asyncio
import collections
import time
from collections.abc import Callable, Hashable

FIRST_GRANTS = 32.0  # until it is known how long unrolls take and wait
_WEIGHT = 0.1  # of an unroll in the running means
# Shares of the time that an unroll takes, for which it may wait for room: below the first one, more
# grants are given, above the second one, fewer. Some must wait, or the learner would starve.
_LEAST_WAIT, _MOST_WAIT = 0.5, 1.0
# Of the limit, for each unroll that comes in. Slower down than up: too many grants make unrolls a
# little older, too few let the learner starve.
_STEP_UP, _STEP_DOWN = 0.5, 0.1
# A grant this many mean unroll times old belongs to a lost actor.
_LOST_AFTER = 5.0
_LOST_AFTER_S = 30.0  # at least

Grant = tuple[Hashable, int]  # session, and the number of the unroll in it


class GrantLimit:
    """How many grants there may be at once.

    Args:
      least: the limit never falls below this.
      first: the limit at first, or `least` if that is more.

    Attributes:
      limit: the limit now.
      unroll_s: mean seconds in which an unroll is made and sent; 0 before the first one.
    """

    def __init__(self, least: int, first: float = FIRST_GRANTS) -> None:
        self._least = float(least)
        self.limit = max(self._least, first)
        self.unroll_s = self._waited_s = 0.0

    def observe(self, unroll_s: float, waited_s: float, more_wanted: bool) -> None:
        """Adjusts the limit to an unroll that has got into the queue.

        Args:
          unroll_s: seconds in which it was made and sent.
          waited_s: seconds that it then waited for room.
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
    """The grants of one learner's actors. Call it in one event loop.

    Args:
      limit: how many there may be at once; None: any number.
      clock: seconds.
      hold_s: seconds that a call waits at most; longer calls could end at their deadline.
    """

    def __init__(
        self,
        limit: GrantLimit | None = None,
        clock: Callable[[], float] = time.monotonic,
        hold_s: float = 15.0,
    ) -> None:
        self._limit = limit
        self._clock = clock
        self._hold_s = hold_s
        self._given: dict[Grant, float] = {}  # when each was given; the oldest first
        self._arrived: dict[Grant, float] = {}  # when the unrolls came that wait for room
        self._waiting: collections.OrderedDict[Grant, asyncio.Future[bool]] = (
            collections.OrderedDict()
        )

    async def wait(self, session: Hashable, sequence: int) -> bool:
        """Waits for a grant.

        Args:
          session: the actor's session.
          sequence: the unroll's number in it.

        Returns:
          whether the actor may make the unroll; False: it should ask again.
        """
        grant = session, sequence
        if self._limit is None or grant in self._given:
            return True
        self._forget_lost(self._limit)
        future = self._waiting.get(grant)
        if future is None:
            future = self._waiting[grant] = asyncio.get_running_loop().create_future()
        self._give()
        try:
            await asyncio.wait([future], timeout=self._hold_s)
        finally:
            if not future.done():
                self._waiting.pop(grant, None)
        return future.done() and future.result()

    def arrived(self, session: Hashable, sequence: int) -> None:
        """Notes that an unroll has arrived, and waits for room in the queue."""
        grant = session, sequence
        if grant in self._given:
            self._arrived.setdefault(grant, self._clock())

    def ended(
        self, session: Hashable, sequence: int, in_queue: bool, blocked_s: float = 0.0
    ) -> None:
        """Takes a grant back.

        Args:
          session: the actor's session.
          sequence: the unroll's number in it.
          in_queue: whether the unroll got into the queue; False: it was refused.
          blocked_s: seconds between the unroll being made and being sent, because the one before it
            was not in the queue yet.
        """
        grant = session, sequence
        given, arrived = self._given.pop(grant, None), self._arrived.pop(grant, None)
        if self._limit is None or given is None:
            return
        if in_queue and arrived is not None:
            blocked_s = min(max(0.0, blocked_s), arrived - given)
            waited_s = blocked_s + self._clock() - arrived
            self._limit.observe(arrived - given - blocked_s, waited_s, bool(self._waiting))
        self._give()

    def lost(self, session: Hashable) -> None:
        """Takes back the grants of an actor that has gone, but for unrolls that have arrived."""
        for grant in list(self._given):
            if grant[0] is session and grant not in self._arrived:
                del self._given[grant]
        if self._limit is not None:
            self._give()

    def release(self) -> None:
        """Lets all actors that wait ask again."""
        for future in self._waiting.values():
            if not future.done():
                future.set_result(False)
        self._waiting.clear()

    def _give(self) -> None:
        assert self._limit is not None
        while self._waiting and len(self._given) < self._limit.limit:
            grant, future = self._waiting.popitem(last=False)
            if not future.done():
                self._given[grant] = self._clock()
                future.set_result(True)

    def _forget_lost(self, limit: GrantLimit) -> None:
        oldest = self._clock() - max(_LOST_AFTER_S, _LOST_AFTER * limit.unroll_s)
        for grant, given in list(self._given.items()):
            if given >= oldest:
                return
            if grant not in self._arrived:
                del self._given[grant]
