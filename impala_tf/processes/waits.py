"""What a learner is waiting for, and a word about it when that takes long."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from impala_tf.processes import peers

T = TypeVar("T")

_LONG_S = 60.0
# A learner without a batch joins an update after a minute (`learner._PATIENCE_S`), and the others
# had their own batches ready a little later than it began to wait.
_JOINED_LATE_S = 45.0

_log = logging.getLogger("impala_tf.learner")


class Waits:
    """Follows a learner between "asks for a batch" and "takes part in an update".

    Args:
      hosts: host:port of every learner, by rank.
      rank: this learner's.
      without_batch: returns the ranks that had no batch for the last update.
      clock: seconds.
    """

    def __init__(
        self,
        hosts: Sequence[str],
        rank: int,
        without_batch: Callable[[], Sequence[int]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._hosts = hosts
        self._rank = rank
        self._without_batch = without_batch
        self._clock = clock
        self._name = peers.names([rank])
        self._updating_since: float | None = None
        self._batch_at = self._warned_at = clock()

    def during(self, batches: Iterable[T | None]) -> Iterator[T | None]:
        """Yields `batches`; between one and the next, the learner is taken to update."""
        for batch in batches:
            began = self._clock()
            if batch is not None:
                self._batch_at = began
            self._updating_since = began
            yield batch
            self._updating_since = None
            self._say_who_was_late(self._clock() - began)

    def warn(self, actors: Sequence[str]) -> None:
        """Says what has been waited for since a minute ago or longer; call every second or so.

        Args:
          actors: names of those that have connected.
        """
        updating_since, now = self._updating_since, self._clock()
        since = self._batch_at if updating_since is None else updating_since
        alone = len(self._hosts) == 1 and updating_since is not None
        if alone or now - max(since, self._warned_at) < _LONG_S:
            return
        self._warned_at = now
        if updating_since is None:
            whom = ", ".join(actors) or "actors, but none has connected"
            _log.warning("no batch for %.0f s; waiting for unrolls of %s", now - since, whom)
        else:
            _log.warning("%s: has waited %.0f s for %s", self._name, now - since, self._whom())

    def _say_who_was_late(self, waited_s: float) -> None:
        late = [rank for rank in self._without_batch() if rank != self._rank]
        if waited_s >= _JOINED_LATE_S and late:
            whom = peers.names(late)
            _log.warning("%s: has waited %.0f s for %s: no batch", self._name, waited_s, whom)

    def _whom(self) -> str:
        silent = peers.silent(self._hosts, self._rank)
        if silent:
            return f"{peers.names(silent)}, which does not answer"
        others = [rank for rank in range(len(self._hosts)) if rank != self._rank]
        return ("" if len(others) == 1 else "one of ") + peers.names(others)
