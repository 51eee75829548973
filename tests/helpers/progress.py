"""What measurements say while they take their time."""

from __future__ import annotations


def only_tells(err: str) -> bool:
    """Tells whether lines of stderr say what is measured, and nothing else."""
    lines = err.splitlines()
    return bool(lines) and all(line.startswith("measuring ") for line in lines)
