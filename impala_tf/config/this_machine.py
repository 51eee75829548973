"""What this process may use of its machine: cores and memory, within its container's limits.

A container's limits are those of its control group: see cgroups(7), and the kernel's guide to
version 2. Standard library only, and one file, because its text is sent to machines without the
project.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_MOUNT, _GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def cores_here(mount: Path = _MOUNT, groups: Path = _GROUPS) -> int:
    """Returns how many cores this process may use; a part of a core counts as one.

    Args:
      mount: the folder of the control groups.
      groups: the file that names this process's.
    """
    quotas = [-(-quota // period) for quota, period in _limits("cpu.max", mount, groups)]
    return max(1, min([len(os.sched_getaffinity(0)), *quotas]))


def memory_here(mount: Path = _MOUNT, groups: Path = _GROUPS) -> int:
    """Returns how many bytes of memory this machine has, or its container, if that is less.

    Arguments as of `cores_here`.
    """
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *(limit for (limit,) in _limits("memory.max", mount, groups))])


def _limits(file: str, mount: Path, groups: Path) -> list[list[int]]:
    """Returns the numbers in this file of each group with a limit: this process's, those above."""
    found = []
    with contextlib.suppress(OSError):
        path = groups.read_text(encoding="utf-8", errors="replace").strip().rpartition("0::")[2]
        inner = mount / path.lstrip("/")
        for folder in (inner, *inner.parents):
            with contextlib.suppress(OSError, ValueError):  # no such group, or "max": no limit
                words = (folder / file).read_text(encoding="ascii").split()
                found.append([int(word) for word in words])
            if folder == mount:
                break
    return found
