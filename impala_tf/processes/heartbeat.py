"""A file that tells a health check whether an actor is still working."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from impala_tf.config import ConfigError

VARIABLE = "IMPALA_TF_HEARTBEATS"
"""Environment variable: what the names of the files begin with; an actor's number follows."""
_EVERY_S = 1.0


class Heartbeat:
    """Writes the time to a file, at most once a second; does nothing without a path."""

    @classmethod
    def of_actor(cls, task: int) -> Heartbeat:
        """Returns the heartbeat of an actor, which the environment variable asks for."""
        path = os.environ.get(VARIABLE)
        return cls(f"{path}-{task}" if path else None)

    def __init__(self, path: str | None) -> None:
        """Removes the file of an earlier process, which says nothing about this one.

        Raises:
          ConfigError: the file cannot be written.
        """
        self._path = None if path is None else Path(path)
        self._next_s = float("-inf")
        if self._path is None:
            return
        try:
            self._path.touch()
            self._path.unlink()
        except OSError as error:
            raise ConfigError(f"{VARIABLE}: {path}: {error.strerror}") from error

    def beat(self) -> None:
        """Writes the seconds of the monotonic clock, which is never adjusted. Thread-safe."""
        now_s = time.monotonic()
        if self._path is None or now_s < self._next_s:  # fast levels take 1000 steps a second
            return
        self._next_s = now_s + _EVERY_S
        with contextlib.suppress(OSError):  # a full disk is no reason to stop acting
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o644)
            try:
                # Overwrites the last time with the same width, which needs no room on a full disk.
                os.pwrite(file, f"{now_s:016.3f}\n".encode(), 0)
            finally:
                os.close(file)
