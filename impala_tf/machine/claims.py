"""What only one process of a user on this machine does at a time."""

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
    """Yields whether no other process of this user claims `what` now, and claims it.

    Raises:
      OSError: for another reason than another claim.
    """
    digest = hashlib.sha256(what.encode()).hexdigest()
    # Unlike a lock file, the name of a socket leaves nothing behind, also if the process is killed.
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
