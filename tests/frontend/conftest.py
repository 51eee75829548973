"""Fixtures of the front end's tests: nodes, and runs here and behind an sshd."""

import functools

import pytest

from impala_tf.frontend import project
from impala_tf.frontend.node import state as files
from tests.helpers.launched_run import Run
from tests.helpers.node import Node
from tests.helpers.remote_run import Remote
from tests.helpers.waiting import wait_until


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty home folder; returns its .ssh."""
    folder = tmp_path / "home" / ".ssh"
    folder.mkdir(parents=True, mode=0o700)
    monkeypatch.setenv("HOME", str(folder.parent))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return folder


@pytest.fixture
def remote(sshd, tmp_path, monkeypatch):
    """A run on a machine behind the sshd; stopped when the test ends."""
    monkeypatch.setenv("HOME", str(tmp_path))
    made = Remote(sshd, tmp_path)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    files_of = functools.partial(project.files, root=made.project)
    monkeypatch.setattr(project, "files", files_of)
    yield made
    if (made.logdir / "cluster.json").exists():
        made.command("stop", "--timeout_s=20")


@pytest.fixture
def node(private_tmux, tmp_path):
    """A node on this machine; stopped when the test ends."""
    made = Node(tmp_path)
    yield made
    if files.orders_path(made.logdir, "node-0").exists():
        made.stop()


@pytest.fixture
def run(private_tmux, tmp_path):
    """A run on this machine that is not launched yet; stopped when the test ends."""
    made = Run(tmp_path)
    yield made
    if (made.logdir / "cluster.json").exists():
        made.command("stop", "--timeout_s=20")


@pytest.fixture
def launched(run):
    """A run on this machine whose actors have started."""
    assert run.launch(detach=True) == 0
    wait_until(lambda: "actor 1 is up" in run.log("actor-1"))
    return run
