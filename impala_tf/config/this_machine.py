"""What this process may use of its machine: cores and memory, within its container's limits.

A container's limits are those of its control group: see cgroups(7), and the kernel's guides to
versions 1 and 2. Standard library only, and one file, because its text is sent to machines without
the project.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_MOUNTS, _GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
# By controller: files of version 2, and of version 1, with a limit and the number that belongs to
# it. That is the period of a processor's quota, in microseconds, and how much memory is in use.
_FILES = {
    "cpu": (["cpu.max"], ["cpu.cfs_quota_us", "cpu.cfs_period_us"]),
    "memory": (
        ["memory.max", "memory.current"],
        ["memory.limit_in_bytes", "memory.usage_in_bytes"],
    ),
}


def cores_here(mounts: Path = _MOUNTS, groups: Path = _GROUPS) -> int:
    """Returns how many cores this process may use; a part of a core counts as one.

    Args:
      mounts: the folder of the control groups.
      groups: the file that names those of this process, by controller.
    """
    limits = _limits("cpu", mounts, groups)
    quotas = [-(-quota // period) for quota, period, _ in limits]
    return max(1, min([len(os.sched_getaffinity(0)), *quotas]))


def memory_here(mounts: Path = _MOUNTS, groups: Path = _GROUPS) -> int:
    """Returns how many bytes of memory this machine has, or its container, if that is less.

    Arguments as of `cores_here`.
    """
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *(limit for limit, _, _ in _limits("memory", mounts, groups))])


def available_bytes(
    meminfo: Path = _MEMINFO, mounts: Path = _MOUNTS, groups: Path = _GROUPS
) -> int | None:
    """Returns how much memory processes can still take: of this machine, and of its container.

    Args:
      meminfo: proc(5).
      mounts, groups: as of `cores_here`.

    Returns:
      None on systems that do not tell.
    """
    left = [
        limit - used + _unused_files(folder)
        for limit, used, folder in _limits("memory", mounts, groups)
    ]
    with contextlib.suppress(OSError):
        lines = meminfo.read_text(encoding="ascii").splitlines()
        left += [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    return min(left, default=None)


def _limits(controller: str, mounts: Path, groups: Path) -> list[tuple[int, int, Path]]:
    """Returns (limit, the number that belongs to it, folder) of each group that has a limit.

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
                limit, other = map(int, " ".join(words).split())
                if limit > 0:  # -1: none
                    found.append((limit, other, folder))
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


def _unused_files(group: Path) -> int:
    """Returns the bytes of files that a group has in memory, and that the kernel drops first."""
    with contextlib.suppress(OSError):
        lines = (group / "memory.stat").read_text(encoding="ascii").splitlines()
        counts = {name: int(count) for name, count in map(str.split, lines)}
        return counts.get("total_inactive_file", counts.get("inactive_file", 0))
    return 0
