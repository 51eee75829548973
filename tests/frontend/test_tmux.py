"""The windows of a run's tmux session."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from impala_tf.frontend.node.tmux import RunSession
from tests.helpers.waiting import wait_until

SCRIPT = """
[ ! -e /nowhere ] && echo "$1!" > "$2"
# a line break, and a !"
"""


@pytest.mark.parametrize("shell", ["bash", "dash", "zsh"])
def test_a_window_runs_its_command_in_the_login_shell(
    shell: str, private_tmux: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = shutil.which(shell)
    assert path is not None
    monkeypatch.setenv("SHELL", path)
    written = tmp_path / "a file"
    session = RunSession("any-shell")
    session.open("first", ["sh", "-c", SCRIPT, "sh", "it's here", str(written)], "run-1")
    wait_until(lambda: written.exists() and written.read_text() == "it's here!\n")
    wait_until(lambda: [(each.name, each.dead) for each in session.windows()] == [("first", True)])
    assert session.windows()[0].run_id == "run-1"
