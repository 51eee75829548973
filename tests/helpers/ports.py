"""Ports of this machine."""

from __future__ import annotations

import random
import socket

# Below the range from which the kernel takes ports for outgoing connections, at any time.
_FIRST, _END = 12_000, 32_000


def free_port() -> int:
    """Returns a port on which nothing listens, nor on the next one (a launch's rendezvous)."""
    while True:
        port = random.randrange(_FIRST, _END)
        if _is_free(port) and _is_free(port + 1):
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
