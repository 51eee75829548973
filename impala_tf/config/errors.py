"""The error that means: the user has to change something, and nothing was started."""

from __future__ import annotations


class ConfigError(ValueError):
    """Flags, files or combinations that cannot be used. Answered with exit status 2.

    Args:
      problems: one line per problem; each names the flag, file, line or column, and what would be
        right.
    """

    def __init__(self, problems: list[str] | str) -> None:
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(self.problems))
