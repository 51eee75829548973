"""What can go wrong on a cluster although the flags and files are right."""

from __future__ import annotations

from impala_tf.printable import printable


class ClusterError(Exception):
    """Machines that cannot be used: one line per problem. The command exits with status 1."""

    def __init__(self, problems: list[str] | str) -> None:
        listed = [problems] if isinstance(problems, str) else problems
        self.problems = [printable(line) for line in listed]  # other machines have a say in them
        super().__init__("\n".join(self.problems))


def said_by(error: Exception) -> str:
    """Returns an error's text, without the system's error number."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


class NoCodeError(ClusterError):
    """A machine has no folder with the run's code yet."""


class NotSetUpError(ClusterError):
    """A machine cannot run the project's code: `frontend setup` has to install something."""
