"""Waiting for what another process will do."""

import time


def wait_until(condition, timeout_s=60.0):
    """Returns once `condition()` is true, with its value; fails after `timeout_s`."""
    until_s = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < until_s, f"waited {timeout_s} s in vain"
        time.sleep(0.02)
    return value
