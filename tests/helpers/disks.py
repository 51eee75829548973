"""Small disks that fill up; they need root."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.helpers.programs import skip_or_fail


@contextlib.contextmanager
def mounted(folder: Path) -> Iterator[Path]:
    """Makes a folder a file system of 8 MiB until the block ends."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)]
    if subprocess.run(command).returncode:
        skip_or_fail("file systems cannot be mounted here (root, and not in a container)")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path) -> Path:
    """Fills a file system; returns the file to delete."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"x" * 4096):
            pass
    return filler
