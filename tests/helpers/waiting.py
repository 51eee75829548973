"""Waiting for what another process or thread does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def wait_until(
    condition: Callable[[], Any],
    timeout_s: float = 240.0,
    *,
    what: str = "a condition",
    explain: Callable[[], object] = str,
    poll_s: float = 0.02,
) -> Any:
    """Waits until `condition()` is true and returns its value; fails after `timeout_s`.

    Args:
      condition: called again and again.
      timeout_s: seconds. It only ends a test that fails, so it is for the busiest machine.
      what: named in the failure.
      explain: called for more text about the failure.
      poll_s: seconds between two calls.
    """
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"no {what} within {timeout_s:g} s\n{explain()}"
        time.sleep(poll_s)
    return value
