"""A file whose age says whether a process still gets on, for whoever looks after it."""

from __future__ import annotations

from pathlib import Path

from impala_tf.config import ConfigError


class Heartbeat:
    """Touches a file at each beat; without a path, does nothing."""

    def __init__(self, path: str | None) -> None:
        """Removes the file of the process before, which says nothing of this one.

        Raises: ConfigError where such a file could not be written.
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
        """Says that the process gets on. Called from any thread."""
        if self._path is not None:
            self._path.touch()
