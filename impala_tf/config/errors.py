"""The error that means: the user has to change something, and nothing was started."""

from __future__ import annotations

_LONGEST = 2000


class ConfigError(ValueError):
    """Flags, files or combinations that cannot be used. Answered with exit status 2.

    Args:
      problems: one line per problem; each names the flag, file, line or column, and what would be
        right.
    """

    def __init__(self, problems: list[str] | str) -> None:
        listed = [problems] if isinstance(problems, str) else problems
        self.problems = [_printable(line) for line in listed]
        super().__init__("\n".join(self.problems))


class LevelRaisedError(ConfigError):
    """The level's own code raised while it was made, which may work at another time.

    So a process that a run has started ends with status 1, and is restarted.
    """


def _printable(line: str) -> str:
    """Returns a line that cannot disturb a terminal: it may quote a file of someone else."""
    text = " ".join(line.split())
    return "".join(c if c.isprintable() else "?" for c in text)[:_LONGEST]
