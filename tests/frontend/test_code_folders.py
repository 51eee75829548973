"""The code of a run on another machine: no later launch changes it, and nothing old is left."""

import os
import shutil
import time

import pytest

from impala_tf.frontend import snapshot
from impala_tf.frontend.node import code_folders
from impala_tf.frontend.node import state as files
from impala_tf.frontend.node.state import Orders, ProcessSpec
from impala_tf.machine.supervision import ProcessState
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


@pytest.mark.parametrize(
    ("state", "stopped", "run_id", "is_kept"),
    [("running", (), "run", True), ("left", (), "run", True), ("finished", (), "run", False),
     ("running", ("actor-0",), "run", False), ("running", (), "a later one", False)],
)  # fmt: skip
def test_only_folders_of_runs_that_go_on_are_kept(tmp_path, state, stopped, run_id, is_kept):
    """A machine that is down, or whose supervisor is dead, goes on with its run later."""
    folder = tmp_path / code_folders.PARENT / "abc"
    folder.mkdir(parents=True)
    files.processes_folder(tmp_path).mkdir()
    orders = Orders(
        "run", "node-0", "impala", str(tmp_path), "", (ProcessSpec("actor-0", "h", ()),), 0.0,
        stopped=stopped, workdir=str(tmp_path), code=str(folder),
    )  # fmt: skip
    code_folders.mark(orders)
    files.write(files.orders_path(tmp_path, "node-0"), orders._replace(run_id=run_id))
    processes = {"actor-0": ProcessState("actor-0", state)}
    files.write(
        files.state_path(tmp_path, "node-0"),
        files.NodeState("run", "node-0", 1, 1, "boot", 0.0, 0.0, processes),
    )
    later = orders._replace(run_id="later", code="elsewhere")
    code_folders.remove_unused(later)
    assert folder.exists(), "a launch may be about to use it"
    os.utime(folder, (0, 0))
    code_folders.remove_unused(later)
    assert folder.exists() == is_kept


@pytest.mark.parametrize("damaged", ["mark", "orders"])
@pytest.mark.parametrize("content", ["", "{}", "[]", '{"processes": [{"rank_info": 1}]}'])
def test_a_damaged_file_of_another_run_does_not_stop_a_launch(tmp_path, damaged, content):
    """A power cut may have emptied it, or another version has written it."""
    folder = tmp_path / code_folders.PARENT / "abc"
    folder.mkdir(parents=True)
    files.processes_folder(tmp_path).mkdir()
    orders = Orders("run", "node-0", "impala", str(tmp_path), "", (), 0.0, workdir=str(tmp_path),
                    code=str(folder))  # fmt: skip
    code_folders.mark(orders)
    (mark,) = folder.iterdir()
    path = mark if damaged == "mark" else files.orders_path(tmp_path, "node-0")
    path.write_text(content)
    for days, is_kept in ((1, True), (60, False)):
        for each in (mark, folder):
            os.utime(each, (time.time() - 86400 * days,) * 2)
        code_folders.remove_unused(orders._replace(run_id="later", code="elsewhere"))
        assert folder.exists() == is_kept, "nobody can tell what uses it"


def test_a_launch_keeps_its_own_code_where_files_have_an_old_time(tmp_path):
    """The clock of a file server may be minutes behind that of the machine."""
    own, recent, old = (tmp_path / code_folders.PARENT / name for name in ("own", "recent", "old"))
    for folder in (own, recent, old):
        folder.mkdir(parents=True)
    orders = Orders(
        "run", "node-0", "impala", str(tmp_path), "", (ProcessSpec("actor-0", "h", ()),), 0.0,
        workdir=str(tmp_path), code=str(own),
    )  # fmt: skip
    code_folders.mark(orders)
    server_s = time.time() - 3600.0
    for path in (own, *own.iterdir(), recent):
        os.utime(path, (server_s, server_s))
    os.utime(old, (0, 0))
    code_folders.remove_unused(orders)
    assert own.exists(), "a launch has removed the code of its own run"
    assert recent.exists(), "another launch may be about to use it"
    assert not old.exists()


def test_machines_that_share_a_home_may_remove_old_code_at_the_same_time(tmp_path, monkeypatch):
    """All but one of their launches failed: what they were looking at was gone."""
    parent = tmp_path / code_folders.PARENT
    old = [parent / name for name in ("one", "two", "three")]
    for folder in old:
        folder.mkdir(parents=True)
        os.utime(folder, (0, 0))
    remove = shutil.rmtree

    def as_the_other_machine(folder, ignore_errors=False):
        for each in old:
            remove(each, ignore_errors=True)

    monkeypatch.setattr(shutil, "rmtree", as_the_other_machine)
    code_folders.remove_unused(Orders("run", "node-0", "impala", str(tmp_path), "", (), 0.0,
                                      workdir=str(tmp_path), code="elsewhere"))  # fmt: skip
    assert not list(parent.iterdir())


@pytest.mark.parametrize("has_run", [False, True])
def test_the_code_of_a_machine_that_shares_the_folder_but_not_the_logdir_is_kept(
    tmp_path, monkeypatch, has_run
):
    """Only the other machine can tell whether its run has ended. This one may have one there."""
    folder = tmp_path / code_folders.PARENT / "abc"
    folder.mkdir(parents=True)
    orders = Orders(
        "run", "node-0", "impala", str(tmp_path / "scratch"), "", (), 0.0, workdir=str(tmp_path),
        code=str(folder),
    )  # fmt: skip
    if has_run:
        files.processes_folder(orders.logdir).mkdir(parents=True)
        files.write(files.orders_path(orders.logdir, "node-0"), orders._replace(run_id="own"))
    monkeypatch.setattr("socket.gethostname", lambda: "other")
    code_folders.mark(orders)
    monkeypatch.setattr("socket.gethostname", lambda: "here")
    later = orders._replace(run_id="later", code="elsewhere")
    days_ago = time.time() - 20 * 86400
    (mark,) = folder.iterdir()
    for path in (mark, folder):
        os.utime(path, (days_ago, days_ago))
    code_folders.remove_unused(later)
    assert folder.exists()
    for path in (mark, folder):
        os.utime(path, (0, 0))
    code_folders.remove_unused(later)
    assert not folder.exists()
