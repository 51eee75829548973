"""Text for terminals: made harmless if somebody else wrote it; tables and durations."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Callable, Sequence
from typing import Any


def printable(text: str, kept: str = "") -> str:
    """Returns a text as one line that cannot disturb a terminal.

    Other space becomes a blank, and all else that is not printable a question mark.

    Args:
      text: any text.
      kept: characters that stay, such as the ends of lines in a log.
    """
    return "".join(c if c.isprintable() or c in kept else " " if c.isspace() else "?" for c in text)


def printable_parts(value: Any) -> Any:
    """Returns a value from JSON or CSV with all of its texts made `printable`."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable(str(key)): printable_parts(each) for key, each in value.items()}
    return [printable_parts(each) for each in value] if isinstance(value, list) else value


def log_printer() -> Callable[[bytes], None]:
    """Returns a function that prints the next bytes of a log, `printable` but for its lines.

    It prints to what is standard output now, even where output of a library is hidden later.
    """
    decoder, out = codecs.getincrementaldecoder("utf-8")("replace"), sys.stdout
    return lambda piece: print(
        printable(decoder.decode(piece), "\n\t"), end="", flush=True, file=out
    )


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Returns rows of cells as lines of aligned columns."""
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
    return "".join(f"{line}\n" for line in lines)


def duration(seconds: float) -> str:
    """Formats a duration in one or two units: 48 s, 11 min, 2 h 05 min, 3 d 04 h."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    hours = round(seconds / 3600)
    return f"{hours // 24} d {hours % 24:02d} h"
