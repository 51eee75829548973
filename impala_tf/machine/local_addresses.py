"""Which addresses are this machine's, and which network interface has one."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import socket


def is_here(host: str) -> bool:
    """Tells whether a host name or address is this machine's.

    What is sent to an own address comes from it. (Binding tells nothing where ip_nonlocal_bind is
    set, as on machines with keepalived.)
    """
    try:
        candidates = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
    except OSError:
        return False  # the name is unknown
    for family, kind, protocol, _, address in candidates:
        ip = ipaddress.ip_address(str(address[0]).partition("%")[0])
        if ip.is_loopback or ip.is_unspecified:
            return True
        with socket.socket(family, kind, protocol) as probe, contextlib.suppress(OSError):
            probe.connect(address)  # sends nothing
            if ipaddress.ip_address(probe.getsockname()[0].partition("%")[0]) == ip:
                return True
    return False


def is_loopback_name(host: str) -> bool:
    """Tells whether a host name other than localhost means loopback here.

    Other machines cannot reach a learner that listens there. Debian's /etc/hosts has 127.0.1.1 for
    the machine's own name.
    """
    if host.lower() == "localhost":
        return False
    try:
        ipaddress.ip_address(host)
    except ValueError:
        pass
    else:
        return False
    try:
        candidates = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)
    except OSError:
        return False
    return all(ipaddress.ip_address(address[0]).is_loopback for *_, address in candidates)


def is_taken(host: str, port: int) -> bool:
    """Tells whether another process listens where a learner should listen.

    If `host` is not this machine's, because of NAT, a learner listens on all of its addresses.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    address = host if is_here(host) else ("::" if family == socket.AF_INET6 else "")
    with socket.socket(family) as probe:
        # A connection that has just ended does not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


def interface_of(host: str) -> str | None:
    """Returns the network interface that has the IPv4 address of `host`, or None."""
    import psutil  # comes with Horovod, which only learners have

    try:
        address = socket.gethostbyname(host)
    except OSError:
        return None
    for name, owned in psutil.net_if_addrs().items():
        if any(one.address == address for one in owned):
            return str(name)
    return None
