"""Processes on a machine that could not be reached when they were stopped, and is back later."""

import contextlib
import functools
import json
import subprocess
import sys

import pytest

from impala_tf.frontend import project
from impala_tf.frontend.node.state import living_pids, read_states, start_ticks
from impala_tf.frontend.record import load
from tests.helpers.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.faults]
NAME = "127.0.0.1"


class Elsewhere:
    """A machine behind an sshd, which has the last actor of a run."""

    def __init__(self, sshd, run):
        self._sshd, self._csv = sshd, run.csv
        self._work = sshd.folder / "work"
        (self._work / "impala_tf").symlink_to(project.ROOT / "impala_tf")
        header, *here = run.csv.read_text().splitlines()
        self._rows = [f"{header},ssh_host,ssh_port,ssh_username,key_filename"]
        self._rows += [f"{row},,,," for row in here]
        login = f"{NAME},{sshd.port},root,{sshd.user_key}"
        self._row = f"actor,localhost,,-1,{self._work},{sys.executable},{login}"

    def write_csv(self, *, is_in: bool) -> None:
        rows = [*self._rows, self._row] if is_in else self._rows
        self._csv.write_text("\n".join(rows) + "\n")

    @contextlib.contextmanager
    def away(self):
        """Lets nobody in."""
        keys = self._sshd.folder / "authorized_keys"
        hidden = keys.rename(keys.with_name("hidden"))
        yield
        hidden.rename(keys)

    def running(self) -> dict[int, int | None]:
        """Returns {pid: start ticks} of the run's processes there."""
        states = read_states(self._work / "logs")
        pids = [pid for state in states for pid in living_pids(state).values()]
        return {pid: start_ticks(pid) for pid in pids}

    def close(self) -> None:
        environment = {"TMUX_TMPDIR": str(self._sshd.folder / "tmux"), "PATH": "/usr/bin:/bin"}
        subprocess.run(["tmux", "kill-server"], env=environment, capture_output=True)
        subprocess.run(["rm", "-rf", self._work / "logs", self._work / "impala_tf"], check=True)


@pytest.fixture
def elsewhere(sshd, run, monkeypatch, tmp_path):
    """The machine. The run's logdir is relative, so that each machine has its own."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(project, "files", functools.partial(project.files, root=run.project))
    absolute, run.logdir = tmp_path / "here" / "logs", "logs"
    made = Elsewhere(sshd, run)
    made.write_csv(is_in=True)
    yield made
    run.logdir = absolute
    made.close()


@pytest.fixture
def left(run, elsewhere, capfd):
    """The processes that `stop` has left there, as {pid: start ticks}."""
    assert run.launch(detach=True, accept_new_host_keys=True) == 0
    wait_until(lambda: len(elsewhere.running()) == 2)
    left = elsewhere.running()
    capfd.readouterr()
    with elsewhere.away():
        assert run.command("stop", "--timeout_s=20") == 1
    said = capfd.readouterr().err
    assert f"{NAME}: processes may still run there; the same command tries again\n" in said
    return left


def test_they_end_when_the_machine_joins_the_next_run(run, elsewhere, left, capfd):
    """`restart` was refused, and advised a `stop` that ended only the healthy run."""
    with elsewhere.away():
        assert run.launch(detach=True, accept_new_host_keys=True, min_actors=2) == 0
    warning = f"warning: {NAME}: `stop` could not reach it, so processes of an earlier launch may"
    said = capfd.readouterr().err
    assert warning in said
    assert "restart --logdir=" in said
    assert elsewhere.running() == left
    assert run.command("restart", NAME) == 0
    now = elsewhere.running()
    assert len(now) == 2
    assert not now.items() & left.items()
    assert run.command("stop", "--timeout_s=20") == 0
    assert elsewhere.running() == {}


def test_the_next_stop_ends_them(run, elsewhere, left, capfd):
    """It said that nothing was running, for ever, and each launch was refused."""
    with elsewhere.away():
        assert run.launch(detach=True, accept_new_host_keys=True, min_actors=2) == 0
    assert run.command("stop", "--timeout_s=20") == 0
    assert elsewhere.running() == {}
    assert run.launch(detach=True, accept_new_host_keys=True) == 0
    capfd.readouterr()
    assert run.launch(detach=True, accept_new_host_keys=True) == 1
    assert "in use by" in capfd.readouterr().err, "of the last launch, only `stop` ends them"


def test_they_end_when_the_machine_is_in_the_csv_again(run, elsewhere, left, capfd):
    """The record had forgotten the machine, so no command could end them."""
    elsewhere.write_csv(is_in=False)
    assert run.launch(detach=True, accept_new_host_keys=True) == 0
    advice = "when it answers, a launch with its row in the workers CSV ends them\n"
    assert advice in capfd.readouterr().err
    assert run.command("stop", "--timeout_s=20") == 0
    elsewhere.write_csv(is_in=True)
    assert run.launch(detach=True, accept_new_host_keys=True) == 0
    assert "may still run" not in capfd.readouterr().err
    assert not elsewhere.running().items() & left.items()


def test_a_stop_of_one_machine_says_that_its_processes_may_still_run(run, elsewhere, capfd):
    assert run.launch(detach=True, accept_new_host_keys=True) == 0
    wait_until(lambda: len(elsewhere.running()) == 2)
    with elsewhere.away():
        assert run.command("stop", NAME, "--timeout_s=20") == 1
    said = capfd.readouterr().err
    assert f"{NAME}: processes may still run there; the same command tries again\n" in said
    assert run.command("stop", NAME, "--timeout_s=20") == 0
    assert elsewhere.running() == {}


def test_a_record_of_an_earlier_version_can_be_loaded(launched):
    """A run that was launched before an update of the project could not be stopped after it."""
    path = launched.logdir / "cluster.json"
    plain = json.loads(path.read_text())
    del plain["earlier"], plain["unended"]
    path.write_text(json.dumps(plain))
    assert load(launched.logdir).earlier == ()
    assert launched.command("stop", "--timeout_s=20") == 0
    assert living_pids(launched.node()) == {}
