"""Warns when a learner has been waiting for long, and names what it waits for."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from impala_tf.learner import peer_watch

T = TypeVar("T")

_LONG_S, _AGAIN_S = 30.0, 60.0
# A learner without a batch joins an update after a minute (`batches_or_none`), and the others had
# their own batches shortly after it began to wait.
_LATE_JOIN_S = 45.0

# A learner of a group that is still in one update after this long hangs, or waits for one that
# does. It ends, so that the group restarts. The first update includes compilation.
_HUNG_S, _FIRST_HUNG_S = 100.0, 400.0

_log = logging.getLogger("impala_tf.learner")


class StallWatch:
    """Tracks whether a learner waits for a batch or for the other learners.

    Args:
      hosts: host:port of every learner, by rank.
      rank: this learner's.
      ranks_without_batch: returns the ranks that had no batch for the last update.
      clock: seconds.
      learner_updates: returns how many there were so far.
    """

    def __init__(
        self,
        hosts: Sequence[str],
        rank: int,
        ranks_without_batch: Callable[[], Sequence[int]],
        clock: Callable[[], float] = time.monotonic,
        learner_updates: Callable[[], int] = lambda: 0,
    ) -> None:
        self._hosts = hosts
        self._rank = rank
        self._ranks_without_batch = ranks_without_batch
        self._clock = clock
        self._name = peer_watch.names([rank])
        self._updating_since: float | None = None
        self._learner_updates = learner_updates
        self._updates_before = 0  # the update that is made now
        self._is_first = True
        self._batch_at = clock()
        self._warned_at = float("-inf")

    def watch(self, batches: Iterable[T | None]) -> Iterator[T | None]:
        """Yields `batches`; the learner is updating from one yield until it asks for the next."""
        for batch in batches:
            began = self._clock()
            if batch is not None:
                self._batch_at = began
            self._updates_before = self._learner_updates()
            self._updating_since = began
            yield batch
            self._updating_since = None
            self._is_first = False
            self._warn_of_late_peers(self._clock() - began)

    def starving_s(self) -> float:
        """For how long this learner has had no batch, in seconds; 0 while it updates."""
        return 0.0 if self._updating_since is not None else self._clock() - self._batch_at

    def hung(self) -> str:
        """Says what hangs, if this learner of a group has been in an update for too long; else ''.

        It hangs itself (say, in a file system that does not answer) or waits for another learner
        that does. Horovod waits without end for a process that lives.
        """
        since, limit_s = self._updating_since, _FIRST_HUNG_S if self._is_first else _HUNG_S
        if since is None or len(self._hosts) == 1:
            return ""
        updating_s = self._clock() - since
        if updating_s < limit_s:
            return ""
        if self._learner_updates() > self._updates_before:
            return f"{self._name}: has hung for {updating_s:.0f} s after an update"
        return f"{self._name}: has waited {updating_s:.0f} s for {self._peers()} in an update"

    def warn(self, actors: Sequence[str]) -> None:
        """Warns if this learner has waited for half a minute or longer; call about once per second.

        Args:
          actors: names of the connected actors.
        """
        updating_since, now = self._updating_since, self._clock()
        since = self._batch_at if updating_since is None else updating_since
        no_peers = len(self._hosts) == 1 and updating_since is not None
        if no_peers or now - since < _LONG_S or now - self._warned_at < _AGAIN_S:
            return
        self._warned_at = now
        if updating_since is None:
            sources = ", ".join(actors) or "actors, but none has connected"
            _log.warning("no batch for %.0f s; waiting for unrolls from %s", now - since, sources)
        else:
            _log.warning("%s: has waited %.0f s for %s", self._name, now - since, self._peers())

    def _warn_of_late_peers(self, waited_s: float) -> None:
        late = [rank for rank in self._ranks_without_batch() if rank != self._rank]
        if waited_s >= _LATE_JOIN_S and late:
            peers = peer_watch.names(late)
            _log.warning("%s: has waited %.0f s for %s: no batch", self._name, waited_s, peers)

    def _peers(self) -> str:
        gone = peer_watch.unreachable(self._hosts, self._rank)
        if gone:
            return f"{peer_watch.names(gone)}, which does not answer"
        others = [rank for rank in range(len(self._hosts)) if rank != self._rank]
        return ("" if len(others) == 1 else "one of ") + peer_watch.names(others)
