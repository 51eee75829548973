"""Fixtures of the front end's tests: an sshd of the test's own, and a run behind it."""

import functools

import pytest

from impala_tf.frontend import project
from tests.helpers.launched_run import Run
from tests.helpers.remote_run import Remote
from tests.helpers.sshd import running_sshd
from tests.helpers.waiting import wait_until


@pytest.fixture(scope="module")
def sshd(tmp_path_factory):
    """A server that takes root with one key."""
    with running_sshd(tmp_path_factory.mktemp("sshd")) as server:
        yield server


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
