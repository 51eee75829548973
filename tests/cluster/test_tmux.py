"""The windows of a run's tmux session."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from impala_tf.cluster.node.state import AgentError
from impala_tf.cluster.node.tmux import RunSession
from tests.helpers.hostile import HOSTILE, KEEP_ARGUMENTS
from tests.helpers.programs import need
from tests.helpers.waiting import wait_until


def test_a_machine_without_tmux_says_so(
    private_tmux: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(AgentError, match="tmux is missing; on Debian: apt-get install tmux"):
        RunSession("impala").windows()


@pytest.mark.parametrize("shell", ["bash", "dash", "zsh"])
def test_a_window_runs_its_command_byte_for_byte_and_stays(
    shell: str, private_tmux: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the login shell is, and also if the launcher itself is inside tmux."""
    monkeypatch.setenv("SHELL", need(shell, shell))
    monkeypatch.setenv("TMUX", f"{tmp_path}/elsewhere,1,0")
    session = RunSession("impala")
    assert session.windows() == []
    command = [sys.executable, "-c", KEEP_ARGUMENTS, *HOSTILE]
    session.open("actor-0", ["env", "-C", str(tmp_path), *command], "run")
    session.open("actor-1", ["sh", "-c", "echo out of memory; exit 3"], "run")
    session.open("mine", ["sleep", "1000"], "")
    wait_until((tmp_path / "arguments.json").exists)
    wait_until(lambda: [each.dead for each in session.windows()] == [False, True, False])
    assert json.loads((tmp_path / "arguments.json").read_text())[0] == HOSTILE
    assert session.last_line("actor-1") == "out of memory"
    session.close("run")
    assert [(each.name, each.run_id) for each in session.windows()] == [("mine", "")]
