"""Who calls: what gRPC says of the other side of a call."""

from __future__ import annotations

import urllib.parse
from typing import Any


def name_in_certificate(context: Any) -> str:
    """Returns the name in the certificate that the caller showed."""
    (name,) = context.auth_context()["x509_common_name"]
    return str(name.decode())


def host(context: Any) -> str:
    """Returns the caller's host; gRPC has 'ipv4:10.0.0.2:5000' or 'ipv6:%5B::1%5D:5000'."""
    return urllib.parse.unquote(context.peer().partition(":")[2].rpartition(":")[0]).strip("[]")
