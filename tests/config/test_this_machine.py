"""What a process may use: its container's limits count, and not only what its machine has."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from impala_tf.cluster import runner
from impala_tf.cluster.plan import NodeSpec
from impala_tf.cluster.runner import LocalRunner
from impala_tf.config import cores_here, memory_here

GIB = 2**30

Groups = Callable[..., tuple[Path, Path]]


@pytest.fixture
def groups(tmp_path: Path) -> Groups:
    """Makes up the folder of the control groups, and the file that names this process's own."""

    def make(own: str, **files: str) -> tuple[Path, Path]:
        for name, text in files.items():
            path = tmp_path / "groups" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}\n")
        (tmp_path / "own").write_text(own)
        return tmp_path / "groups", tmp_path / "own"

    return make


@pytest.mark.parametrize(
    ("own", "files", "cores"),
    [
        ("0::/\n", {}, 64),
        ("0::/\n", {"cpu.max": "200000 100000"}, 2),
        ("0::/\n", {"cpu.max": "50000 100000"}, 1),
        ("0::/a/b\n", {"cpu.max": "400000 100000", "a/cpu.max": "300000 100000",
                       "a/b/cpu.max": "max 100000", "c/cpu.max": "100000 100000"}, 3),
        # A container sees its own folder at the top, and may know its path on the machine:
        ("5:cpu:/d/1f\n0::/d/1f\n", {"cpu.max": "150000 50000"}, 3),
        ("", {}, 64),
        ("0::/../other\n", {"cpu.max": "nonsense"}, 64),
    ],
)  # fmt: skip
def test_a_quota_limits_the_cores(
    groups: Groups, monkeypatch: pytest.MonkeyPatch, own: str, files: dict[str, str], cores: int
) -> None:
    """Otherwise `docker run --cpus=2` on a machine of 64 cores starts 64 actors on two."""
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(64)))
    assert cores_here(*groups(own, **files)) == cores


@pytest.mark.parametrize(
    ("own", "files", "limit"),
    [
        ("0::/\n", {"memory.max": "max"}, None),
        ("0::/\n", {"memory.max": "1000000"}, 1_000_000),
        ("0::/a/b\n", {"a/memory.max": "2000000",
                       "a/b/memory.max": "3000000"}, 2_000_000),
    ],
)  # fmt: skip
def test_a_container_may_have_less_memory_than_its_machine(
    groups: Groups, own: str, files: dict[str, str], limit: int | None
) -> None:
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert memory_here(*groups(own, **files)) == (machine if limit is None else limit)


def test_the_doctor_asks_a_machine_for_its_containers_limits(
    groups: Groups, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its text is sent there, so nothing of this process is known."""
    made = groups("0::/\n", **{"cpu.max": "100000 100000", "memory.max": "5000000"})
    source = runner.PROBE
    for name, path in zip(("/sys/fs/cgroup", "/proc/self/cgroup"), made, strict=True):
        assert source.count(f'"{name}"') == 1
        source = source.replace(f'"{name}"', f'"{path}"')
    monkeypatch.setattr(runner, "PROBE", source)
    node = NodeSpec("gpu7", "", True, str(tmp_path), "python3", "logs")
    seen = runner.run_probe(LocalRunner(node), "look", {"packages": [], "folder": "/"})
    assert (seen["cores"], seen["memory_bytes"]) == (1, 5_000_000)
