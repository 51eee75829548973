"""What a process may use: its container's limits count, and not only what its machine has."""

from __future__ import annotations

from pathlib import Path

import pytest

from impala_tf.config import cores_here, memory_here


@pytest.mark.parametrize(
    ("own", "files", "cores"),
    [
        ("0::/\n", {}, 64),
        ("0::/\n", {"cpu.max": "50000 100000"}, 1),
        ("0::/a/b\n", {"cpu.max": "400000 100000", "a/cpu.max": "300000 100000",
                       "a/b/cpu.max": "max 100000", "c/cpu.max": "100000 100000"}, 3),
        # A container sees its own folder at the top, and may know its path on the machine:
        ("5:cpu:/d/1f\n0::/d/1f\n", {"cpu.max": "150000 50000"}, 3),
        ("0::/../other\n", {"cpu.max": "nonsense"}, 64),
    ],
)  # fmt: skip
def test_a_quota_limits_the_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str, files: dict[str, str], cores: int
) -> None:
    """Otherwise `docker run --cpus=2` on a machine of 64 cores starts 64 actors on two."""
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(64)))
    assert cores_here(*made_up(tmp_path, own, files)) == cores


def test_a_container_may_have_less_memory_than_its_machine(tmp_path: Path) -> None:
    limits = {"memory.max": "max", "a/memory.max": "2000000", "a/b/memory.max": "3000000"}
    assert memory_here(*made_up(tmp_path, "0::/a/b\n", limits)) == 2_000_000


def made_up(folder: Path, own: str, files: dict[str, str]) -> tuple[Path, Path]:
    """Writes a folder of control groups; returns it and the file that names this process's own."""
    for name, text in files.items():
        path = folder / "groups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    (folder / "own").write_text(own)
    return folder / "groups", folder / "own"
