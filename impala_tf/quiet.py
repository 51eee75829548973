"""Starts TensorFlow without what its libraries print on the way. Exceptions come through."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


def import_tensorflow() -> None:
    """Imports TensorFlow; its GPU plugins complain of each other before any log level counts.

    dm-tree tells once that it was shown a set, as Sonnet does where layers compute in bfloat16.
    """
    with _nobody_hears():
        import tensorflow  # noqa: F401
        import tree

        tree.flatten(set())


def start_xla() -> None:
    """Compiles a first function; XLA tells of itself then, whatever the log level.

    It fixes the numbers of threads: set them before.
    """
    import tensorflow as tf

    with _nobody_hears(), tf.device("CPU"):
        tf.function(lambda: tf.zeros([]), jit_compile=True)()


@contextlib.contextmanager
def _nobody_hears() -> Iterator[None]:
    """Closes standard error to the native code of this process, too."""
    kept = os.dup(2)
    try:
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
