"""Claims, of which one process of a user on this machine can hold each at a time."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def claimed(what: str) -> Iterator[bool]:
    """Claims `what` until the block ends; yields False if another process of this user has it.

    Raises:
      OSError: the claim fails for another reason.
    """
    digest = hashlib.sha256(what.encode()).hexdigest()
    # Unlike a lock file, a socket's name leaves nothing behind, even if the process is killed.
    with socket.socket(socket.AF_UNIX) as claim:
        try:
            claim.bind(f"\0impala_tf-{os.getuid()}-{digest}")
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            yield False
            return
        yield True


def name_of(path: Path) -> str:
    """Returns a path's name in claims: containers may have other folders at the same path."""
    try:
        mounts = str(Path("/proc/self/ns/mnt").readlink())
    except OSError:
        mounts = ""
    return f"{path.resolve()} {mounts}"
