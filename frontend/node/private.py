"""What nobody but the run's user may read on a machine."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from frontend.node import state as files


class ForeignFolderError(Exception):
    """A folder belongs to another user; the message says which."""


def check_owner(logdir: Path) -> None:
    """Raises ForeignFolderError if another user could read the run's keys, or replace its files."""
    for folder in (logdir, logdir / "credentials", files.processes_folder(logdir)):
        with contextlib.suppress(FileNotFoundError):
            owner = folder.stat().st_uid
            if owner not in (os.geteuid(), 0):
                raise ForeignFolderError(f"{folder} belongs to another user (uid {owner})")


def write_credentials(folder: Path, contents: Mapping[str, str]) -> None:
    """Writes {file name: text} into a folder that only the user can open."""
    folder.mkdir(mode=0o700, exist_ok=True)
    folder.chmod(0o700)
    for name, text in contents.items():
        files.replace_file(folder / name, text.encode())
