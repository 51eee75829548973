"""Processes on a machine that could not be reached when they were stopped, and is back later."""

import contextlib
import functools
import subprocess
import sys

import pytest

from impala_tf.cluster import code, requirements
from impala_tf.cluster.node.state import living_pids, read_states, start_ticks
from tests.helpers.sshd import trust
from tests.helpers.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.faults]
NAME = "127.0.0.1"


class Elsewhere:
    """A machine behind an sshd, which has the last actor of a run."""

    def __init__(self, sshd, run):
        self._sshd = sshd
        self._work = sshd.folder / "work"
        (self._work / "impala_tf").symlink_to(requirements.ROOT / "impala_tf")
        header, *here = run.csv.read_text().splitlines()
        rows = [f"{header},ssh_host,ssh_port,ssh_username,key_filename"]
        rows += [f"{row},,,," for row in here]
        login = f"{NAME},{sshd.port},root,{sshd.user_key}"
        rows.append(f"actor,localhost,,-1,{self._work},{sys.executable},{login}")
        run.csv.write_text("\n".join(rows) + "\n")

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
    trust(sshd)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(code, "pack", functools.partial(code.pack, root=run.project))
    absolute, run.logdir = tmp_path / "here" / "logs", "logs"
    made = Elsewhere(sshd, run)
    yield made
    run.logdir = absolute
    made.close()


def test_the_same_stop_ends_them_once_the_machine_answers(run, elsewhere, capfd):
    """Until then, a launch is refused, and says how to end them."""
    assert run.launch(detach=True) == 0
    wait_until(lambda: len(elsewhere.running()) == 2)
    capfd.readouterr()
    with elsewhere.away():
        assert run.command("stop", "--timeout_s=20") == 1
    said = capfd.readouterr().err
    assert ": processes may still run there; stop the run again\n" in said
    assert run.launch(detach=True) == 1
    said = capfd.readouterr().err
    assert f"{NAME}:" in said and "is in use by" in said and "stop --logdir=" in said
    assert run.command("stop", "--timeout_s=20") == 0
    assert elsewhere.running() == {}
    assert run.launch(detach=True) == 0
