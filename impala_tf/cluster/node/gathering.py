"""Decides which learners of a run train together, in each attempt.

The supervisor of each learner polls `join` while its learner is *not* running. Once all learners
wait, they start together. After that, the run continues without a learner that stays away, and the
learner joins again when it returns.

Learner 0 leads: its machine has the checkpoints, so no group starts without it. If the network
splits, the learners that cannot reach learner 0 wait; there are never two groups.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

LEADER = 0
# How long learners and their supervisors wait, in seconds:
FRESH_S = 10.0
"""A supervisor that has been silent for this long counts as gone."""
SETTLE_S = 20.0
"""After a loss, learner 0 waits this long before the group starts without learners whose
supervisors are gone."""
LATE_S = 90.0
"""How long it waits if their supervisors are not gone: such a learner hangs, and is killed
after HUNG_S, or is about to be restarted."""
PATIENCE_S = 600.0
"""How long learners wait for all of them before they first train: longer than a machine takes
to boot. Later, how long they wait if too few are there."""
GROW_S = 60.0
"""A group trains for at least this long before it stops so that a learner can join again."""
HUNG_S = 60.0
"""A learner hangs if it still runs after others of its group have waited this long: it should
have noticed within `group.GLOO_TIMEOUT_S` that they have ended."""
ASK_S = 5.0
"""How often the supervisor of a running learner asks about the others."""


class Waiting(NamedTuple):
    """A learner that waits to start."""

    attempt: str
    """A unique name of this start."""
    since_s: float
    seen_s: float


def may_start(
    waiting: Mapping[int, float], heard: Collection[int], before: Collection[int], size: int
) -> bool:
    """Tells whether the learners that wait may start without the others.

    Args:
      waiting: {learner that waits: for how long, in seconds}.
      heard: the learners whose supervisors have just been heard.
      before: the members of the last group.
      size: the number of the run's learners.
    """
    if len(waiting) == size:
        return True
    missing = set(range(size)) - waiting.keys()
    if not missing.isdisjoint(heard):
        wait_s = LATE_S
    elif before and missing.isdisjoint(before):  # no loss: they were away before
        wait_s = 0.0
    else:
        wait_s = SETTLE_S
    return waiting.get(LEADER, -1.0) >= wait_s


class Gathering:
    """Lets learners start together: all of them, or those that are there. Thread-safe."""

    def __init__(
        self,
        size: int,
        min_learners: int | None = None,
        has_trained: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Starts without any learner.

        Args:
          size: the number of the run's learners.
          min_learners: the fewest that may start. None: all the first time, and one later.
          has_trained: whether they have started before, under an earlier supervisor.
          clock: returns the time in seconds.
        """
        self._size = size
        self._min_learners = min_learners
        self._has_trained = has_trained
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: dict[int, Waiting] = {}
        self._heard_s: dict[int, float] = {}
        self._away_since_s: dict[int, float] = {}
        self._group = ""
        self._attempts: dict[int, str] = {}  # {member of the group: its attempt}
        self._began_s = 0.0
        self._over = ""
        self._done = False
        self._store: dict[str, str] = {}

    def join(self, number: int, attempt: str) -> dict[str, Any]:
        """Registers a waiting learner, and returns what it should do.

        Args:
          number: the learner's number.
          attempt: a unique name of this start of the learner.

        Returns:
          {"group": None while the learner has to wait, else {"name": the group's name, "members":
          the numbers of its learners, "away": {number of another learner, as text: seconds since
          it went away}}; "over": why no group will start, or ""; "done": whether the run has
          ended; "missing": the numbers of the learners that are not waiting}.

        Raises:
          ValueError: there is no such learner.
        """
        with self._lock:
            now = self._hear(number)
            if self._attempts.get(number) != attempt:
                before = self._waiting.get(number)
                since_s = before.since_s if before and before.attempt == attempt else now
                self._waiting[number] = Waiting(attempt, since_s, now)
            here = self._here(now)
            missing = [other for other in range(self._size) if other not in here]
            if here and not (self._over or self._done):
                self._start_or_end(here, missing, now)
            away = {str(other): now - since_s for other, since_s in self._away_since_s.items()}
            group = {"name": self._group, "members": list(self._attempts), "away": away}
            return {
                "group": group if self._attempts.get(number) == attempt else None,
                "over": self._over,
                "done": self._done,
                "missing": missing,
            }

    def watch(self, number: int, attempt: str) -> dict[str, Any]:
        """Returns what the supervisor of a running learner has to know.

        Args:
          number: the learner's number.
          attempt: the name of the learner's start.

        Returns:
          {"waiting_s": how long another learner of its group has been waiting to restart;
          "outdated": whether another group has started without this learner; "returned": for
          learner 0 only, the numbers of learners that wait for the group to restart with them}.

        Raises:
          ValueError: there is no such learner.
        """
        with self._lock:
            now = self._hear(number)
            here, members = self._here(now), self._attempts
            peers_s = [now - here[n].since_s for n in here if n != number and n in members]
            long_enough = now - self._began_s >= GROW_S
            is_told = number == LEADER and long_enough and LEADER in members
            return {
                "waiting_s": max(peers_s, default=0.0),
                "outdated": bool(members) and attempt not in members.values(),
                "returned": sorted(here.keys() - members.keys()) if is_told else [],
            }

    def leave(self, reason: str) -> None:
        """Ends the group, because a learner will not restart. The first reason is kept."""
        with self._lock:
            self._over = self._over or reason

    def reopen(self) -> None:
        """Lets the learners gather again after `leave`."""
        with self._lock:
            self._over = ""

    def finish(self) -> None:
        """From now on, tells waiting learners that the run has ended."""
        with self._lock:
            self._done = True

    def value(self, group: str, path: str) -> str | None:
        """Returns what a member of the group has stored at `path`, or None."""
        with self._lock:
            return self._store.get(path) if group == self._group else None

    def put(self, group: str, path: str, value: str) -> bool:
        """Stores a value for the group; returns False if another group has started."""
        with self._lock:
            if group == self._group:
                self._store[path] = value
            return group == self._group

    def _hear(self, number: int) -> float:
        if not 0 <= number < self._size:
            raise ValueError(f"learner {number} of {self._size}")
        now = self._heard_s[number] = self._clock()
        return now

    def _is_fresh(self, at_s: float, now: float) -> bool:
        return now - at_s < FRESH_S

    def _here(self, now: float) -> dict[int, Waiting]:
        return {n: each for n, each in self._waiting.items() if self._is_fresh(each.seen_s, now)}

    def _start_or_end(self, here: Mapping[int, Waiting], missing: list[int], now: float) -> None:
        fewest = self._min_learners or (1 if self._has_trained else self._size)
        waited_s = {number: now - each.since_s for number, each in here.items()}
        if len(here) >= fewest:
            heard = [n for n, at_s in self._heard_s.items() if self._is_fresh(at_s, now)]
            if may_start(waited_s, heard, self._attempts, self._size):
                self._start(here, missing, now)
        elif waited_s.get(LEADER, 0.0) >= PATIENCE_S:
            names = ", ".join(f"learner-{number}" for number in missing)
            self._over = f"waited {waited_s[LEADER] / 60:.0f} min for {names}"

    def _start(self, here: Mapping[int, Waiting], missing: list[int], now: float) -> None:
        self._group = secrets.token_hex(8)
        self._attempts = {number: here[number].attempt for number in sorted(here)}
        self._began_s = now
        self._has_trained = True
        away = self._away_since_s
        self._away_since_s = {n: away.get(n, here[LEADER].since_s) for n in missing}
        self._waiting.clear()
        self._store.clear()
