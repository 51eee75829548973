"""Which network interface has an address."""

from __future__ import annotations

import socket


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
