"""Training goes on while its files cannot be written; everybody is told, and writing is retried."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator

from impala_tf.monitoring.status import StorageTrouble

_log = logging.getLogger("impala_tf.learner")


class StorageWatch:
    """Remembers what could not be written, and since when. Thread-safe.

    Only what has been written before may fail: otherwise a wrong flag would look like a full disk.

    Args:
      clock: seconds since 1970.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._troubles: dict[str, StorageTrouble] = {}
        self._proven: set[str] = set()

    @contextlib.contextmanager
    def attempt(self, what: str) -> Iterator[None]:
        """A block that writes `what`: an OSError in it is remembered instead of raised.

        Raises:
          OSError: `what` could never be written.
        """
        try:
            yield
        except OSError as error:
            if what not in self._proven:
                raise
            with self._lock:
                known = self._troubles.get(what)
                since_s = self._clock() if known is None else known["since_unix_s"]
                text = f"cannot write {what}: {error.strerror or error}"
                self._troubles[what] = StorageTrouble(since_unix_s=since_s, text=text)
            if known is None:
                _log.error("%s; training goes on, and writing is retried", text)
        else:
            with self._lock:
                self._proven.add(what)
                known = self._troubles.pop(what, None)
            if known is not None:
                _log.info("%s: can be written again", what)

    def forget(self, what: str) -> None:
        """Forgets that `what` could not be written, because nobody needs it any more."""
        with self._lock:
            self._troubles.pop(what, None)

    def trouble(self) -> StorageTrouble | None:
        """Returns what has been impossible to write for longest; None: everything is written."""
        with self._lock:
            troubles = self._troubles.values()
            return min(troubles, key=lambda trouble: trouble["since_unix_s"], default=None)
