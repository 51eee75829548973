"""Native libraries that print to standard error whatever the log level."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def silenced_stderr() -> Iterator[None]:
    """Sends standard error to /dev/null, also for native code in this process.

    Python exceptions still surface.
    """
    kept = os.dup(2)
    try:
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
