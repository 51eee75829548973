"""Which addresses are this machine's."""

from __future__ import annotations

import contextlib
import socket


def is_here(host: str) -> bool:
    """Tells whether a host name or address is this machine's: only those can be bound to."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)
    except OSError:
        return False  # The name is unknown.
    for family, kind, protocol, _, address in found:
        with socket.socket(family, kind, protocol) as probe, contextlib.suppress(OSError):
            probe.bind(address)
            return True
    return False
