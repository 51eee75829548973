"""`fetch` names in one line what it cannot write here."""

import pytest

from tests.helpers.disks import mounted

pytestmark = pytest.mark.slow


def test_places_that_cannot_be_written_are_named(launched, tmp_path, capfd):
    """Each ended with a traceback."""
    (tmp_path / "a file").touch()
    target = tmp_path / "fetched"
    (target / "processes" / "actor-1.log").mkdir(parents=True)
    capfd.readouterr()
    for place, reason in (
        (tmp_path / "a file", "File exists"),
        (tmp_path / "a file" / "there", "Not a directory"),
        ("/proc/x", "No such file or directory"),
    ):
        assert launched.command("fetch", f"--to={place}") == 2
        said = f"--to={place}: {reason}; name a folder that can be written\n"
        assert capfd.readouterr().err == said
    assert launched.command("fetch", f"--to={target}") == 2
    assert f"{target}/processes/actor-1.log: Is a directory\n" in capfd.readouterr().err
    assert not list(target.glob(".fetch-*"))


@pytest.mark.faults
def test_a_full_disk_is_named(launched, tmp_path, capfd):
    large = launched.logdir / "checkpoints" / "large"
    large.parent.mkdir()
    large.write_bytes(b"x" * 10_000_000)
    capfd.readouterr()
    with mounted(tmp_path / "disk") as disk:
        assert launched.command("fetch", f"--to={disk}") == 2
    assert f"{disk}/checkpoints/large: No space left on device\n" in capfd.readouterr().err
