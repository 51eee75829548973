"""The code of a run on another machine: no later launch changes it, and nothing old is left."""

import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from impala_tf.frontend import snapshot
from impala_tf.frontend.node import code_folders
from tests.helpers.waiting import wait_until

pytestmark = pytest.mark.slow


def test_a_run_keeps_its_code_whatever_is_launched_later(remote, capfd):
    (remote.project / "README.md").write_text("deleted later")
    assert remote.launch() == 0, capfd.readouterr().err
    wait_until(lambda: "actor 0 is up with -1" in remote.log())
    ((first, folder),) = remote.folders().items()
    assert (folder / "README.md").exists()
    remote.edit("new")
    (remote.project / "README.md").unlink()
    assert remote.launch("other") == 1, "the tmux session is in use"
    assert "exists already" in capfd.readouterr().err
    assert remote.command("restart", "actor-0") == 0
    wait_until(lambda: remote.log().count("actor 0 is up with -1") == 2)
    assert "is new" not in remote.log(), "a restart mixed two versions of the code"
    assert remote.command("stop") == 0

    for path in remote.folders().values():
        os.utime(path, (0, 0))
    assert remote.launch() == 0, capfd.readouterr().err
    wait_until(lambda: "actor 0 is new with -1" in remote.log())
    ((second, folder),) = remote.folders().items()
    assert second != first, "the folder of a run that has ended was not removed"
    assert not (folder / "README.md").exists(), "a file lingers that was deleted"
    assert folder.name == snapshot.take("").digest


def test_a_machine_that_joins_later_gets_the_code_that_was_launched(remote, capfd):
    assert remote.launch() == 0, capfd.readouterr().err
    digest = snapshot.take("").digest
    remote.edit("new")
    assert snapshot.take("").digest != digest
    assert snapshot.load(remote.logdir).digest == digest


def test_what_follows_a_run_works_without_its_code(remote, capfd):
    assert remote.launch() == 0, capfd.readouterr().err
    assert remote.command("stop") == 0
    for path in remote.folders().values():
        path.rename(remote.work / "elsewhere")
    capfd.readouterr()
    assert remote.command("stop") == 0, capfd.readouterr().err
    assert remote.command("status") == 0
    assert remote.command("restart", "actor-0") == 1
    assert "a later launch has removed its code; launch it again" in capfd.readouterr().err


def test_a_launch_removes_only_folders_that_nobody_has_used_for_a_week(tmp_path):
    """Of machines that share a home, one may remove them while another looks at them."""
    parent = tmp_path / code_folders.PARENT
    days = {"own": 30, "recent": 6, "old": 8, "older": 30}
    for name, age in days.items():
        (parent / name).mkdir(parents=True)
        os.utime(parent / name, (time.time() - 86400 * age,) * 2)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(code_folders.remove_unused, [parent / "own"] * 8))
    assert {path.name for path in parent.iterdir()} == {"own", "recent"}
    code_folders.remove_unused(tmp_path)
    assert tmp_path.exists(), "this machine's runs use the project itself"


def test_a_run_keeps_its_code_fresh(remote, capfd):
    assert remote.launch() == 0, capfd.readouterr().err
    ((_, folder),) = remote.folders().items()
    os.utime(folder, (0, 0))
    assert remote.command("stop") == 0
    assert remote.command("restart", "actor-0") == 0
    wait_until(lambda: folder.stat().st_mtime > time.time() - 60)
