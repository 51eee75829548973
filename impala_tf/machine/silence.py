"""Silences native libraries that print to standard error at any log level."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def silenced_stderr() -> Iterator[None]:
    """Sends standard error to /dev/null, even that of native code in this process.

    Python exceptions still surface.
    """
    original = os.dup(2)
    try:
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(original, 2)
        os.close(original)
