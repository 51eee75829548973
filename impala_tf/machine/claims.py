"""What only one process of a user on this machine does at a time."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import socket
from collections.abc import Iterator


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
