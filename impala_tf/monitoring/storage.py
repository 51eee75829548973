"""Keeps training running while its files cannot be written: reports that, and retries."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator

from impala_tf.monitoring.status_file import StorageTrouble

_log = logging.getLogger("impala_tf.learner")


class StorageWatch:
    """Remembers what could not be written, and since when. Thread-safe.

    A first write may not fail: otherwise a wrong flag would look like a full disk.

    Args:
      clock: returns the Unix time.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._troubles: dict[str, StorageTrouble] = {}
        self._proven: set[str] = set()

    @contextlib.contextmanager
    def attempt(self, what: str, proven: bool = False) -> Iterator[None]:
        """Wraps code that writes `what`: an OSError is remembered.

        Raises OSError: the first write fails, and it is not `proven` by another that the flags are
        right.
        """
        try:
            yield
        except OSError as error:
            if not proven and what not in self._proven:
                raise
            self._note(what, f"cannot write {what}: {error.strerror or error}")
        else:
            self._note(what, "")

    def _note(self, what: str, text: str) -> None:
        """Remembers a problem, or that there is none; logs it if that is new."""
        with self._lock:
            known = self._troubles.pop(what, None)
            if text:
                since_s = self._clock() if known is None else known["since_unix_s"]
                self._troubles[what] = StorageTrouble(since_unix_s=since_s, text=text)
            else:
                self._proven.add(what)
        if text and known is None:
            _log.error("%s; training continues, and this is tried again", text)
        elif known is not None and not text:
            _log.info("%s: can be written again", what)

    def forget(self, what: str) -> None:
        """Forgets that `what` could not be written, when it is no longer needed."""
        with self._lock:
            self._troubles.pop(what, None)

    def trouble(self) -> StorageTrouble | None:
        """Returns the oldest problem; None if everything can be written."""
        with self._lock:
            troubles = self._troubles.values()
            return min(troubles, key=lambda trouble: trouble["since_unix_s"], default=None)
