"""Fixtures of the launcher's tests: runs and machines here and behind an sshd."""

import functools

import pytest

from impala_tf.cluster import code, requirements
from tests.helpers.launched_run import Run
from tests.helpers.machine_setup import Setup
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
    files_of = functools.partial(code.pack, root=made.project)
    monkeypatch.setattr(code, "pack", files_of)
    yield made
    if (made.logdir / "launch_id").exists():
        made.command("stop", "--timeout_s=20")


@pytest.fixture
def run(private_tmux, tmp_path):
    """A run on this machine that is not launched yet; stopped when the test ends."""
    made = Run(tmp_path)
    yield made
    if (made.logdir / "launch_id").exists():
        made.command("stop", "--timeout_s=20")


@pytest.fixture
def launched(run):
    """A run on this machine whose actors have started."""
    assert run.launch(detach=True) == 0
    wait_until(lambda: "actor 1 is up" in run.log("actor-1"))
    return run


@pytest.fixture
def small_project(tmp_path):
    """A project with one small package."""
    folder = tmp_path / "project"
    (folder / "impala_tf").mkdir(parents=True)
    (folder / "impala_tf" / "a.py").write_text("A = 1\n")
    (folder / "pyproject.toml").write_text(
        '[project]\nname="x"\ndependencies=["iniconfig"]\n'
        '[project.optional-dependencies]\nlearner=[]\nworlds=["toolz"]\n'
    )
    (folder / requirements.CONSTRAINTS).write_text("iniconfig==2.1.0\ntoolz==1.0.0\n")
    return folder


@pytest.fixture
def setup(sshd, home, small_project, tmp_path):
    """A machine to set up."""
    made = Setup(sshd, small_project, tmp_path / "there; $(touch x)")
    yield made
    made.runner.close()
