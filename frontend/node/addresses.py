"""Which addresses are this machine's."""

from __future__ import annotations

import contextlib
import socket


def is_here(host: str) -> bool:
    """Tells whether a host name or address is this machine's: only those can be bound to."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)
    except OSError:
        return False  # The name is unknown. Connecting to it will report that.
    for family, kind, protocol, _, address in found:
        with socket.socket(family, kind, protocol) as probe, contextlib.suppress(OSError):
            probe.bind(address)
            return True
    return False


def interface_of(host: str) -> str | None:
    """Returns the network interface that has the IPv4 address of `host`, or None."""
    import psutil  # comes with Horovod, which only learners have

    try:
        address = socket.gethostbyname(host)
    except OSError:
        return None
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address == address for each in addresses):
            return str(name)
    return None
