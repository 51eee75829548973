"""How long to wait before a call is retried, and when to report that it is being retried."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

# A learner restarts within seconds: retry soon at first, then spare the network. The jitter keeps
# hundreds of actors from retrying at the same moment.
FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 10.0
# A short interruption is not worth a message; a learner that stays away is, now and then.
FIRST_REPORT_S = 5.0
REPORT_INTERVAL_S = 60.0


class Backoff:
    """The pauses of one call that is retried until it succeeds."""

    def __init__(self, on_retry: Callable[[float, str], None] | None) -> None:
        self._on_retry = on_retry
        self._started = time.monotonic()
        self._next_report_s = FIRST_REPORT_S
        self._pause_s = FIRST_PAUSE_S

    def wait(self, reason: str, interrupted: threading.Event) -> None:
        """Waits before the next try, or until `interrupted` is set."""
        waited_s = time.monotonic() - self._started
        if self._on_retry is not None and waited_s >= self._next_report_s:
            self._next_report_s = waited_s + REPORT_INTERVAL_S
            self._on_retry(waited_s, reason)
        interrupted.wait(self._pause_s * random.uniform(0.5, 1.0))
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
