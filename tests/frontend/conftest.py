"""Fixtures of the front end's tests: a tmux server and an sshd of the test's own."""

import os
import subprocess
import tempfile

import pytest

from tests.helpers.sshd import running_sshd


@pytest.fixture
def private_tmux(monkeypatch):
    """Gives the test a tmux server of its own, ended afterwards with everything in it."""
    with tempfile.TemporaryDirectory(prefix="tmux-") as folder:
        monkeypatch.setenv("TMUX_TMPDIR", folder)
        monkeypatch.delenv("TMUX", raising=False)
        yield
        monkeypatch.undo()  # A test may have hidden tmux from itself.
        environment = {**os.environ, "TMUX_TMPDIR": folder}
        subprocess.run(["tmux", "kill-server"], capture_output=True, env=environment)


@pytest.fixture(scope="module")
def sshd(tmp_path_factory):
    """A server that takes root with one key."""
    with running_sshd(tmp_path_factory.mktemp("sshd")) as server:
        yield server
