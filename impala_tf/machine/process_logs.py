"""The logs of processes: their size, and their last lines. Standard library only."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

EVENT = "--- "
"""How the lines of a supervisor begin in the log of its process."""
_TIME_OF_DAY = re.compile(r"^\d\d:\d\d:\d\d ")  # of a line that was logged
_TAIL_BYTES, _LONGEST_LINE = 10_000, 300

MAX_BYTES = 20 * 2**20
"""A process's log is moved to NAME.log.1 when it is larger, so a long run cannot fill the disk."""


def limit(path: Path, max_bytes: int | None = None) -> None:
    """Moves what a log contains to NAME.log.1 if it is large, and replaces what was there before.

    The file itself stays: processes append to it. A few lines may be lost in the moment between.

    Args:
      path: a log that processes append to.
      max_bytes: default: MAX_BYTES.
    """
    try:
        if path.stat().st_size <= (MAX_BYTES if max_bytes is None else max_bytes):
            return
        earlier = path.with_name(f"{path.name}.1")
        try:
            shutil.copyfile(path, earlier)
        except OSError:  # On a full disk, the newest lines matter most.
            earlier.unlink(missing_ok=True)
        os.truncate(path, 0)
    except OSError:
        return  # It is tried again soon, and a process must not end because of its log.


def last_line(log: Path) -> str:
    """Returns the last line that a process printed since its last start; '' if there is none."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    for line in reversed(lines):
        if line.startswith(EVENT):
            return ""  # of a supervisor, about the start before
        if line.strip():
            text = _TIME_OF_DAY.sub("", line.strip())[:_LONGEST_LINE]
            return "".join(c for c in text if c.isprintable())
    return ""
