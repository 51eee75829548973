"""Commands as text for any shell."""

from __future__ import annotations

import shlex
import string
from collections.abc import Sequence

_PLAIN = frozenset(f"{string.ascii_letters}{string.digits} ./_=-".encode())


def command_line(argv: Sequence[str]) -> str:
    """Returns a command as text for whatever login shell a machine has."""
    text = shlex.join(argv)
    if "!" not in text and "\n" not in text:
        return text
    # csh interprets these even in quotes.
    octal = "".join(chr(byte) if byte in _PLAIN else rf"\0{byte:03o}" for byte in text.encode())
    return shlex.join(["sh", "-c", 'eval "$(printf %b "$1")"', "sh", octal])
