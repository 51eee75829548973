"""tmux sessions, on a private server: windows run the process itself and stay afterwards."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from frontend.errors import ClusterError
from frontend.machine import LocalMachine
from frontend.plan import Place
from frontend.tmux import Session
from tests.helpers.hostile import HOSTILE, KEEP_ARGUMENTS
from tests.helpers.waiting import wait_until


@pytest.fixture
def session(private_tmux, tmp_path):
    place = Place("this machine", "", True, str(tmp_path), sys.executable, str(tmp_path))
    return Session(LocalMachine(place), "impala")


def test_a_session_exists_only_while_it_has_windows(session):
    assert session.windows() is None
    session.open("learner-0", ["sleep", "1000"], "run")
    windows = session.windows()
    assert [(w.name, w.dead, w.run_id) for w in windows] == [("learner-0", False, "run")]
    session.close("run")
    assert session.windows() is None


def test_arguments_arrive_byte_for_byte_without_a_shell(session, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = [sys.executable, "-c", KEEP_ARGUMENTS, *HOSTILE]
    session.open("actor-0", ["env", "-C", str(tmp_path), *command], "run")
    arrived = tmp_path / "arguments.json"
    wait_until(arrived.exists)
    arguments, pid = json.loads(arrived.read_text())
    assert arguments == HOSTILE
    assert pid == session.windows()[0].pid, "the window does not run the process itself"
    assert not (tmp_path / "x").exists()
    assert not Path("x").exists()


def test_a_window_whose_process_exited_at_once_can_still_be_read(session):
    session.open("learner-0", ["sh", "-c", "echo out of memory; exit 3"], "run")
    wait_until(lambda: session.windows()[0].dead)
    assert session.last_line("learner-0") == "out of memory"


def test_closing_a_run_leaves_other_windows_and_sessions_open(session):
    session.open("learner-0", ["sleep", "1000"], "run")
    session.open("mine", ["sleep", "1001"], "")
    subprocess.run(["tmux", "new-session", "-d", "-s", "impala-2", "sleep 1002"], check=True)
    session.close("run")
    assert [window.name for window in session.windows()] == ["mine"]
    names = subprocess.check_output(["tmux", "list-sessions", "-F", "#S"], text=True).split()
    assert names == ["impala", "impala-2"]


def test_a_machine_without_tmux_is_named(session, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    place = Place("node7", "", True, str(tmp_path), sys.executable, str(tmp_path))
    with pytest.raises(ClusterError, match="node7: tmux is missing"):
        Session(LocalMachine(place), "impala").windows()


def test_a_launcher_inside_tmux_uses_the_default_server(session, monkeypatch, tmp_path):
    monkeypatch.setenv("TMUX", f"{tmp_path}/elsewhere,1,0")
    place = Place("this machine", "", True, str(tmp_path), sys.executable, str(tmp_path))
    Session(LocalMachine(place), "impala").open("learner-0", ["sleep", "1000"], "run")
    assert [window.name for window in session.windows()] == ["learner-0"]
