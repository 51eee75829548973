"""What this process may use of its machine: cores and memory, within its container's limits.

A container's limits are those of its control group: see cgroups(7), and the kernel's guides to
versions 1 and 2. Standard library only, and one file, because its text is sent to machines without
the project.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_MOUNTS, _GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
# By controller: files of version 2, and of version 1, with a limit; for processors, also with the
# period of a quota, in microseconds.
_FILES = {
    "cpu": (["cpu.max"], ["cpu.cfs_quota_us", "cpu.cfs_period_us"]),
    "memory": (["memory.max"], ["memory.limit_in_bytes"]),
}


def cores_here(mounts: Path = _MOUNTS, groups: Path = _GROUPS) -> int:
    """Returns how many cores this process may use; a part of a core counts as one.

    Args:
      mounts: the folder of the control groups.
      groups: the file that names those of this process, by controller.
    """
    limits = _limits("cpu", mounts, groups)
    quotas = [-(-quota // period) for quota, period in limits]
    return max(1, min([len(os.sched_getaffinity(0)), *quotas]))


def memory_here(mounts: Path = _MOUNTS, groups: Path = _GROUPS) -> int:
    """Returns how many bytes of memory this machine has, or its container, if that is less.

    Arguments as of `cores_here`.
    """
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *(limit for (limit,) in _limits("memory", mounts, groups))])


def _limits(controller: str, mounts: Path, groups: Path) -> list[list[int]]:
    """Returns the numbers in the files of each group that has a limit.

    They are this process's group and those above it. A container may know the path that its
    machine has for the group, but see only the group's folder, in place of the topmost one.
    """
    found = []
    paths = _paths(groups)
    unified, version_1 = _FILES[controller]
    for mount, path, files in (
        (mounts, paths.get("", ""), unified),
        (mounts / controller, paths.get(controller, ""), version_1),
    ):
        inner = mount / path.lstrip("/")
        for folder in (inner, *inner.parents):
            with contextlib.suppress(OSError, ValueError):  # no such group, or "max": no limit
                words = [(folder / file).read_text(encoding="ascii") for file in files]
                numbers = [int(word) for word in " ".join(words).split()]
                if numbers[0] > 0:  # -1: none
                    found.append(numbers)
            if folder == mount:
                break
    return found


def _paths(groups: Path) -> dict[str, str]:
    """Returns {controller: path of this process's group}; that of version 2 is named ""."""
    paths = {}
    with contextlib.suppress(OSError):
        for line in groups.read_text(encoding="utf-8", errors="replace").splitlines():
            _, controllers, path = line.split(":", 2)
            paths.update(dict.fromkeys(controllers.split(","), path))
    return paths
