"""What a learner must tell its user: few people look into its log."""

from __future__ import annotations

import logging

FOR_USER = {"for_user": True}
"""`extra` of a logger's call: the line also reaches the display, through status.json."""


class Notes(logging.Handler):
    """Keeps the lines of this process that were logged with FOR_USER. Each is kept once.

    Attributes:
      lines: the oldest first.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps the line."""
        if getattr(record, "for_user", False) and (line := record.getMessage()) not in self.lines:
            self.lines.append(line)
