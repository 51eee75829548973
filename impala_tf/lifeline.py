"""Ties a process to its parent, so that a killed parent leaves nothing running behind it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with_parent(parent_pid: int, signal_number: int = signal.SIGKILL) -> None:
    """Lets the kernel send `signal_number` to this process when its parent ends, however it ends.

    Linux ties this to the *thread* that started this process: start processes from a thread that
    lives as long as they should. Elsewhere than on Linux this does nothing.

    Args:
      parent_pid: what the parent saw as its own process id before it started this process. If the
        parent is no more by now, the signal is raised at once.
      signal_number: the signal to receive.

    Raises:
      OSError: if the kernel refuses.
    """
    if not sys.platform.startswith("linux"):
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(signal_number), 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl(PR_SET_PDEATHSIG): {os.strerror(error)}")
    # A parent that ended before prctl sends nothing: by now somebody else has adopted us.
    if os.getppid() != parent_pid:
        signal.raise_signal(signal_number)
