"""Checks that the packages are installed, before anything that needs them is imported.

This runs with any Python 3, because the user may have started the wrong one.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from impala_tf.config import user_commands

_OLDEST = (3, 11)
# An interpreter with these has the other packages, too: see `dependencies` in pyproject.toml.
_PACKAGES = ("shtab", "rich", "gymnasium", "grpc")


def require(program: str) -> None:
    """Without the packages, prints a line that says what to do, and exits with status 2.

    Args:
      program: what the user started: user_commands.SCRIPT or FRONTEND.
    """
    if sys.version_info >= _OLDEST and all(map(importlib.util.find_spec, _PACKAGES)):
        return
    name = program.split()[-1] if user_commands.IS_CHECKOUT else "impala"
    print(f"{name}: {_what_to_do(program)}", file=sys.stderr)
    sys.exit(2)


def _what_to_do(program: str) -> str:
    if not user_commands.IS_CHECKOUT:
        return f"some of its packages are missing; run {user_commands.install_extra('learner')}"
    interpreter = user_commands.PROJECT / ".venv" / "bin" / "python"
    command = user_commands.with_interpreter(interpreter, program)
    if interpreter.exists() and interpreter.parent != Path(sys.executable).parent:
        return f"{sys.executable} does not have the project's packages; use {command}"
    return f"the project's packages are not installed; run {user_commands.set_up()}, then {command}"
