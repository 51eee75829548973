"""What can go wrong on a cluster although the flags and files are right."""

from __future__ import annotations

import errno
import os

_NOT_OF_SETUP = (
    "the connection was lost", "tmux is missing", "belongs to another user",
    "no answer within",
    "does not answer any more", "where an answer was expected",
    *map(os.strerror, (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)),
)  # fmt: skip


class ClusterError(Exception):
    """Machines that cannot be used: one line per problem. The command exits with status 1."""

    def __init__(self, problems: list[str] | str) -> None:
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(self.problems))


def said_by(error: Exception) -> str:
    """Returns an error's text, without the system's error number."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


class NoCodeError(ClusterError):
    """A machine has no folder with the run's code yet."""


def setup_may_mend(problem: str) -> bool:
    """Tells whether `frontend setup` may solve a machine's problem."""
    return not any(text in problem for text in _NOT_OF_SETUP)
