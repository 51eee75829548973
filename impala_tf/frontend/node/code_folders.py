"""The folders with the code of runs on this machine: PARENT/DIGEST in the workdir."""

from __future__ import annotations

import contextlib
import shutil
import time
from pathlib import Path

PARENT = ".code"
TOUCH_S = 3600.0
"""How often the supervisor of a run touches the run's folder."""
_KEPT_S = 7 * 24 * 3600.0
"""How long a folder is kept after its last use: its run may be restarted, its machine be off."""


def touch(folder: Path) -> None:
    """Notes that a run uses its folder, if it has one of its own, or that a launch is about to."""
    if folder.parent.name == PARENT and folder.is_dir():
        folder.touch()


def remove_unused(own: Path) -> None:
    """Removes the folders that no run has used for a week.

    Args:
      own: the folder of a run, which is kept; or the project itself, which is not one of them.
    """
    for folder in own.parent.iterdir() if own.parent.name == PARENT else ():
        # Another machine may share the folder, and remove it at the same time.
        with contextlib.suppress(FileNotFoundError):
            if folder != own and time.time() - folder.stat().st_mtime > _KEPT_S:
                shutil.rmtree(folder, ignore_errors=True)
