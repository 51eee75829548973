"""Notes of a learner that its user must see, because few people read its log."""

from __future__ import annotations

import logging

FOR_USER = {"for_user": True}
"""Pass this as `extra` to a logger: status.json and the display also get the line."""


class Notes(logging.Handler):
    """Keeps the lines that this process has logged with FOR_USER, each once.

    Attributes:
      lines: the lines, oldest first.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps the line of a record that was logged with FOR_USER."""
        if getattr(record, "for_user", False) and (line := record.getMessage()) not in self.lines:
            self.lines.append(line)
