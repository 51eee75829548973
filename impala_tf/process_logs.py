"""Keeps the logs of processes from filling the disk. Standard library only."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

MAX_BYTES = 20 * 2**20
"""A process's log is moved to NAME.log.1 when it is larger, so a long run cannot fill the disk."""


def limit(path: Path, max_bytes: int | None = None) -> None:
    """Moves what a log contains to NAME.log.1 if it is large, and replaces what was there before.

    The file itself stays: processes append to it. A few lines may be lost in the moment between.

    Args:
      path: of a log that processes append to.
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
