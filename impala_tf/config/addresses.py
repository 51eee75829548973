"""Addresses of learners and machines as text: host:port, with an IPv6 address in brackets."""

from __future__ import annotations

import re


def host_port(host: str, port: int) -> str:
    """Returns host:port, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_host_port(text: str) -> tuple[str, int]:
    """Returns the host, without brackets, and the port of host:port.

    Raises:
      ValueError: the port is not a number.
    """
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


def valid_host(text: str) -> bool:
    """Tells whether `text` may be a host name or an IPv4 address.

    The names between its dots have 1 to 63 characters: Python looks up no others.
    """
    labels = text.removesuffix(".").split(".")
    return len(text) <= 253 and all(re.fullmatch("[A-Za-z0-9_-]{1,63}", label) for label in labels)


def valid_host_port(text: str) -> bool:
    """Tells whether `text` is host:port or [IPv6]:port with a port of 1 to 65535."""
    match = re.fullmatch(r"(?:([A-Za-z0-9_.-]+)|\[[0-9A-Fa-f:.]+\]):([0-9]{1,5})", text)
    if match is None or not 1 <= int(match[2]) <= 65535:
        return False
    return match[1] is None or valid_host(match[1])
