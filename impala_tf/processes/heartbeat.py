"""A file whose age tells a health check whether a process is still working."""

from __future__ import annotations

import contextlib
from pathlib import Path

from impala_tf.config import ConfigError


class Heartbeat:
    """Touches a file at each beat; does nothing without a path."""

    def __init__(self, path: str | None) -> None:
        """Removes the file of an earlier process, which says nothing about this one.

        Raises: ConfigError if the file cannot be written.
        """
        self._path = None if path is None else Path(path)
        if self._path is None:
            return
        try:
            self._path.touch()
            self._path.unlink()
        except OSError as error:
            raise ConfigError(f"--heartbeat_path={path}: {error.strerror}") from error

    def beat(self) -> None:
        """Touches the file. May be called from any thread."""
        if self._path is not None:
            with contextlib.suppress(OSError):  # A full disk is no reason to stop acting.
                self._path.touch()
