"""Imports TensorFlow without what its libraries print on the way."""

from __future__ import annotations

import os
from pathlib import Path


def import_tensorflow() -> None:
    """Imports TensorFlow with the process' standard error closed to it.

    Its GPU plugins complain of each other on every machine, before any log level counts. Exceptions
    are not output and come through.
    """
    kept = os.dup(2)
    try:
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        import tensorflow  # noqa: F401
    finally:
        os.dup2(kept, 2)
        os.close(kept)
