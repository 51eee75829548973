"""What goes wrong on a cluster although flags and files are usable."""

from __future__ import annotations


class ClusterError(Exception):
    """Machines that cannot be used or refuse: one line a problem. The command's status is 1."""

    def __init__(self, problems: list[str] | str) -> None:
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(self.problems))
