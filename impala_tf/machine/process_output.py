"""What processes print: the size of their logs, last lines, and silence. Standard library only."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from impala_tf.printable import printable

EVENT = "--- "
"""The beginning of a supervisor's lines in the log of its process."""
_TIME_OF_DAY = re.compile(r"^\d\d:\d\d:\d\d ")  # at the beginning of logged lines
_TAIL_BYTES, _LONGEST_LINE = 10_000, 300

MAX_BYTES = 20 * 2**20
"""A larger log is moved to NAME.log.1, so that a long run cannot fill the disk."""


def limit(path: Path) -> None:
    """Moves the last MAX_BYTES of a larger log to NAME.log.1, whose old content is replaced.

    The file itself stays, because processes append to it. A few lines may be lost meanwhile.
    """
    try:
        if (size := path.stat().st_size) <= MAX_BYTES:
            return
        earlier = path.with_name(f"{path.name}.1")
        try:
            with path.open("rb") as log, earlier.open("wb") as copy:
                os.sendfile(copy.fileno(), log.fileno(), size - MAX_BYTES, MAX_BYTES)
        except OSError:  # on a full disk, the newest lines matter most
            earlier.unlink(missing_ok=True)
        os.truncate(path, 0)
    except OSError:
        return  # the next call tries again; a log must not end its process


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
            return ""  # a supervisor's line about the previous start
        if line.strip():
            return printable(_TIME_OF_DAY.sub("", line.strip())[:_LONGEST_LINE])
    return ""


@contextlib.contextmanager
def silenced_stderr() -> Iterator[None]:
    """Sends standard error to /dev/null, even that of native code in this process.

    Native libraries print there at any log level. Python exceptions still surface.
    """
    original = os.dup(2)
    try:
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(original, 2)
        os.close(original)
