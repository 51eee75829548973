"""The error for wrong input: the user has to change something; nothing was started."""

from __future__ import annotations

from impala_tf.printable import printable

_LONGEST = 2000


class ConfigError(ValueError):
    """Flags or files that cannot be used, or not together. Ends the process with status 2.

    Args:
      problems: one line per problem; each names the flag, file, line or column, and what would be
        right.
    """

    def __init__(self, problems: list[str] | str) -> None:
        listed = [problems] if isinstance(problems, str) else problems
        # A line may quote somebody else's file.
        self.problems = [printable(" ".join(line.split()))[:_LONGEST] for line in listed]
        super().__init__("\n".join(self.problems))


class LevelRaisedError(ConfigError):
    """The level's own code raised while the level was made; another try may succeed.

    So a process that a run has started ends with status 1 instead of 2, and is restarted.
    """
