"""The agent: starts, stops and restarts a node's processes in tmux windows of this machine."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from impala_tf.cluster.node import state as files
from impala_tf.cluster.node.plain import from_plain
from impala_tf.cluster.node.state import AgentError, NodeState
from impala_tf.cluster.node.tmux import RunSession
from tests.helpers.waiting import wait_until


def test_a_machine_without_tmux_says_so(private_tmux, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(AgentError, match="tmux is missing; on Debian: apt-get install tmux"):
        RunSession("impala").windows()


def test_launching_opens_a_window_for_each_process_and_writes_private_keys(node):
    os.environ["AWS_SECRET_ACCESS_KEY"] = "canary"
    try:
        state = node.launch("learner-0", "actor-0")
    finally:
        del os.environ["AWS_SECRET_ACCESS_KEY"]
    assert {name: p.state for name, p in state.processes.items()} == {
        "learner-0": "running", "actor-0": "running"
    }  # fmt: skip
    session = RunSession("impala")
    assert [w.name for w in session.windows()] == ["supervisor", "learner-0", "actor-0"]
    wait_until(lambda: "is up" in session.last_line("actor-0"))
    folder = node.logdir / "credentials"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    for pid in files.living_pids(state).values():
        assert b"canary" not in Path(f"/proc/{pid}/environ").read_bytes()


def test_search_paths_that_are_longer_than_a_command_of_tmux_arrive(node, monkeypatch):
    """As `module load` makes them on clusters."""
    paths = ":".join(f"/opt/it's here/{number}/lib; $(touch x) é" for number in range(1500))
    monkeypatch.setenv("LD_LIBRARY_PATH", paths)
    state = node.launch("actor-0")
    variables = Path(f"/proc/{state.processes['actor-0'].pid}/environ").read_bytes().split(b"\0")
    assert f"LD_LIBRARY_PATH={paths}".encode() in variables
    assert (
        files.processes_folder(node.logdir) / "node-0.environment"
    ).stat().st_mode & 0o777 == 0o600
    wait_until(lambda: "is up" in RunSession("impala").last_line("actor-0"))


def test_stopping_ends_the_run_and_nothing_else(node):
    node.launch("learner-0", "actor-0")
    mine = subprocess.Popen(["sleep", "1000"], cwd=node.project)
    subprocess.run(["tmux", "new-window", "-d", "-t", "=impala:", "-n", "mine"], check=True)
    try:
        another = node.ask(
            "stop",
            **node.about(
                run_id="x", tmux_sess="impala", names=None, timeout_s=5, close=True, is_final=True
            ),
        )
        assert another == {"stopped": {}, "left": {}}
        assert node.stop("learner-0") == {"stopped": {"learner-0": 0}, "left": {}}
        assert set(files.living_pids(node.state())) == {"supervisor", "actor-0"}
        assert node.stop() == {"stopped": {"actor-0": 0}, "left": {}}
        assert files.living_pids(node.state()) == {}
        assert [w.name for w in RunSession("impala").windows()] == ["mine"]
        assert mine.poll() is None
    finally:
        mine.kill()
        mine.wait()


def test_what_a_reboot_ended_starts_again_with_what_is_restarted(node):
    """What had ended for good, and was not asked for, stays so."""
    state = node.launch("actor-0", "actor-1", "actor-2")
    subprocess.run(["tmux", "kill-server"], check=True)  # as a reboot does
    wait_until(lambda: files.living_pids(state) == {})
    path = files.state_path(node.logdir, "node-0")
    rebooted = node.state()
    words = {"actor-0": "running", "actor-1": "finished", "actor-2": "failed"}
    files.write(path, rebooted._replace(boot_id="the one before", processes={
        name: rebooted.processes[name]._replace(state=word) for name, word in words.items()
    }))  # fmt: skip
    again = from_plain(NodeState, node.restart("actor-2", of=words))
    assert {*files.living_pids(again)} == {"supervisor", "actor-0", "actor-2"}
    assert again.processes["actor-1"].state == "finished"


def test_a_second_launch_names_what_is_in_use(node):
    node.launch("actor-0")
    assert "is in use by supervisor, actor-0" in node.launch("actor-0")
    checked = node.ask("check", tmux_sess="impala", logdir=str(node.logdir),
                       addresses=["127.0.0.1", "192.0.2.1"], names=["localhost"])  # fmt: skip
    assert checked["loopback"] == []
    assert checked["windows"] == ["supervisor", "actor-0"]
    assert [text.split(" (")[0] for text in checked["running"]] == ["supervisor", "actor-0"]
    assert checked["foreign"] == ["192.0.2.1"]
    assert checked["workdir"] == str(node.project)


def test_a_logdir_of_another_user_is_refused(node):
    node.logdir.mkdir()
    os.chown(node.logdir, 12345, -1)
    assert "belongs to another user (uid 12345)" in node.launch("actor-0")
    assert list(node.logdir.iterdir()) == []


def test_a_launch_that_comes_after_its_interruption_is_refused(node):
    """Ctrl-C does not await what is on its way to the machines."""
    assert node.ask("cancel", **node.about(run_id="run")) == {}
    assert node.launch("actor-0").startswith("the launch was interrupted; ")
    assert node.state() is None
    assert isinstance(node.launch("actor-0", run_id="another"), NodeState)


def test_a_supervisor_that_cannot_start_is_reported(node):
    package = node.project / "impala_tf"
    package.unlink()
    shutil.copytree(Path(files.__file__).parents[2], package)
    supervisor = package / "cluster" / "node" / "supervisor.py"
    supervisor.write_text("raise SystemExit('cannot allocate memory')")
    assert node.launch("actor-0") == "the supervisor did not start: cannot allocate memory"
