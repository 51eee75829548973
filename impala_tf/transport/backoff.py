"""The pauses between retries of a failed call."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import NamedTuple


class RetryTimes(NamedTuple):
    """When a call is retried, and when retries are reported; in seconds."""

    # A learner restarts within seconds: retry soon at first, then less often. `Backoff` adds jitter
    # to keep hundreds of actors from retrying at the same moment.
    first_pause_s: float = 0.2
    longest_pause_s: float = 10.0
    # A short interruption is not reported; a long one repeatedly.
    first_report_s: float = 5.0
    report_interval_s: float = 60.0


class Backoff:
    """The pauses of one call that is retried until it succeeds.

    Args:
      on_retry: called with (seconds so far, reason) when a retry is to be reported.
      times: the pauses, and when retries are reported.
    """

    def __init__(self, on_retry: Callable[[float, str], None], times: RetryTimes) -> None:
        self._on_retry = on_retry
        self._times = times
        self._started = time.monotonic()
        self._next_report_s = times.first_report_s
        self._pause_s = times.first_pause_s

    def hurry(self) -> None:
        """Starts again with the shortest pause."""
        self._pause_s = self._times.first_pause_s

    def wait(self, reason: str, interrupted: threading.Event) -> None:
        """Waits before the next try, but not after `interrupted` is set."""
        waited_s = time.monotonic() - self._started
        if waited_s >= self._next_report_s:
            self._next_report_s = waited_s + self._times.report_interval_s
            self._on_retry(waited_s, reason)
        interrupted.wait(self._pause_s * random.uniform(0.5, 1.0))
        self._pause_s = min(2 * self._pause_s, self._times.longest_pause_s)
