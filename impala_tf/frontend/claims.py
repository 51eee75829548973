"""Claims, of which one process of a user on this machine can hold each at a time."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import os
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

_MOST_ASKING = 4096
_UCRED = struct.Struct("3i")  # unix(7): process, user, group


@contextlib.contextmanager
def claimed(what: str) -> Iterator[bool]:
    """Claims `what` until the block ends; yields False if another process of this user has it.

    Raises:
      OSError: the claim fails for another reason.
    """
    digest = hashlib.sha256(what.encode()).hexdigest()
    for number in itertools.count():  # until a name that no other user keeps from this one
        name = f"\0impala_tf-{os.getuid()}-{digest}-{number}"
        # Unlike a lock file, a socket's name leaves nothing behind, even if the process is killed.
        with socket.socket(socket.AF_UNIX) as claim:
            try:
                claim.bind(name)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                if not _is_ours(name):
                    continue
                yield False
                return
            claim.listen(_MOST_ASKING)  # so that others can ask who has the name
            yield True
            return


def _is_ours(name: str) -> bool:
    """Tells whether a socket with this name is of this user."""
    for pause_s in (0.1, 0.0):  # it may not listen yet
        with socket.socket(socket.AF_UNIX) as asking:
            asking.setblocking(False)
            with contextlib.suppress(OSError):
                asking.connect(name)
                owner = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
                return int(_UCRED.unpack(owner)[1]) == os.getuid()
        time.sleep(pause_s)
    return False


def name_of(path: Path) -> str:
    """Returns a path's name in claims: containers may have other folders at the same path."""
    try:
        mounts = str(Path("/proc/self/ns/mnt").readlink())
    except OSError:
        mounts = ""
    return f"{path.resolve()} {mounts}"
