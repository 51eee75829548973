"""The memory and processor time of this process and its children."""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from collections.abc import Callable
from pathlib import Path

_PROC = Path("/proc/self")
_INTERVAL_S = 5.0
_M_ARENA_MAX = -8  # malloc.h, see mallopt(3)


def peak_mib(proc: Path = _PROC) -> float | None:
    """Returns the peak resident memory of this process and its living children, in MiB.

    The peaks (VmHWM, see proc(5)) are added, so pages that processes share, such as libraries,
    count once for each process. `proc` is this process's folder; None: the system does not report
    it.
    """
    own = _peak_kib(proc / "status")
    if own is None:
        return None
    children = (_peak_kib(proc.parent / child / "status") or 0 for child in _children(proc))
    return (own + sum(children)) / 1024


def use_one_arena() -> None:
    """Makes all threads allocate from one arena; large tensors come from none.

    With an arena a thread, a Pong run's learner and two actors have 920 MiB in place of 605
    (`sandbox/benchmark.py start`). Does nothing without glibc.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


class PeakMemory:
    """`peak_mib` for frequent callers: read only every few seconds."""

    def __init__(
        self,
        read: Callable[[], float | None] = peak_mib,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read, self._clock = read, clock
        self._read_again_at = clock()
        self._mib = 0.0

    def mib(self) -> float:
        """Returns the largest value so far, in MiB; 0 if the system does not report it."""
        if self._clock() >= self._read_again_at:
            self._read_again_at = self._clock() + _INTERVAL_S
            self._mib = max(self._mib, self._read() or 0.0)
        return self._mib


def cpu_seconds(proc: Path = _PROC) -> float:
    """Returns the processor time of this process and its living descendants; 0 if unknown."""
    try:
        fields = (proc / "stat").read_text(encoding="ascii").rpartition(")")[2].split()
    except OSError:
        return 0.0  # not Linux, or the process has ended
    own = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # utime, stime: proc(5)
    return own + sum(cpu_seconds(proc.parent / child) for child in _children(proc))


def _peak_kib(status: Path) -> int | None:
    try:
        lines = status.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None  # not Linux, or the process has ended
    peaks = (line.split()[1] for line in lines if line.startswith("VmHWM:"))
    return next((int(kib) for kib in peaks), None)


def _children(proc: Path) -> list[str]:
    """Returns the ids of the processes that any thread of this process started."""
    children_ids = []
    for path in proc.glob("task/*/children"):
        try:
            children_ids += path.read_text(encoding="ascii").split()
        except OSError:
            continue  # the thread has ended
    return children_ids
