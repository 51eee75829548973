"""What can go wrong on a cluster although flags and files are fine."""

from __future__ import annotations


class ClusterError(Exception):
    """Machines that cannot be used: one line per problem. The command exits with status 1."""

    def __init__(self, problems: list[str] | str) -> None:
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(self.problems))


class NoCodeError(ClusterError):
    """A machine has no folder with the run's code yet."""
