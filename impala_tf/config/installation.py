"""Checks that the packages are installed, before anything that needs them is imported.

This runs with any Python 3, because the user may have started the wrong one.
"""

from __future__ import annotations

import importlib.util
import sys

from impala_tf.config import user_commands

_OLDEST = (3, 11)
# An interpreter with these has the other packages, too: see `dependencies` in pyproject.toml.
_PACKAGES = ("rich", "gymnasium", "grpc")


def require(program: str) -> None:
    """Without the packages, prints a line that says what to do, and exits with status 2.

    Args:
      program: what the user started: user_commands.SCRIPT or FRONTEND.
    """
    if sys.version_info >= _OLDEST and all(map(importlib.util.find_spec, _PACKAGES)):
        return
    advice = f"run {user_commands.install_extra('learner')}"
    if user_commands.IS_CHECKOUT:
        advice = f"run make setup in {user_commands.PROJECT}, then .venv/bin/python {program}"
    print(f"{sys.executable} does not have the project's packages; {advice}", file=sys.stderr)
    sys.exit(2)
