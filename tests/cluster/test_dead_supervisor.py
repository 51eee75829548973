"""A supervisor that is killed: its machine starts it again, and no process runs twice."""

import os
import signal
import subprocess

from impala_tf.cluster.node import state as files
from impala_tf.machine.supervision import ProcessState
from tests.cluster.test_supervisor import ACTOR, shell, supervise  # noqa: F401
from tests.helpers.launched_run import windows
from tests.helpers.waiting import wait_until


def is_back(run, before):
    state = run.node()
    processes = state.processes.values()
    return state.pid != before.pid and {each.state for each in processes} == {"running"}


def test_a_supervisor_that_was_killed_starts_again_and_says_so_in_its_log(launched):
    before = launched.node()
    os.kill(before.pid, signal.SIGKILL)
    wait_until(lambda: is_back(launched, before))
    wait_until(lambda: launched.log("learner-0").count("is up with") == 2)
    wait_until(lambda: launched.log("actor-0").count("is up with") == 2)
    assert files.living_pids(before) == {}, "a process runs twice"
    assert launched.state("actor-0").restarts == 1
    log = launched.log("supervisor-node-here")
    assert "the supervisor has died (status 137); restart in 5 s" in log
    assert launched.command("stop") == 0
    assert windows() == []


def test_ctrl_c_in_its_window_ends_it_for_good(launched):
    subprocess.run(["tmux", "send-keys", "-t", "=impala:=supervisor", "C-c"], check=True)
    ended = ["supervisor 1", "learner-0 1", "actor-0 1", "actor-1 1"]
    wait_until(lambda: windows() == ended, explain=windows)
    assert launched.state("actor-0").state == "stopped"


def test_what_had_ended_stays_so_and_what_still_runs_is_ended_first(supervise, tmp_path):  # noqa: F811
    """The processes of a supervisor that was killed take a while to stop."""
    up, go = tmp_path / "orphan is up", tmp_path / "orphan may go"
    ends_late = f"trap 'while [ ! -e \"{go}\" ]; do sleep .1; done; exit' TERM"
    orphan = subprocess.Popen(
        ["sh", "-c", f"{ends_late}; touch '{up}'; sleep 1000 & wait"], process_group=0
    )
    wait_until(up.exists)
    ticks = files.start_ticks(orphan.pid)
    processes = {
        "learner-0": ProcessState("learner-0", "failed", detail="no restart is left"),
        "actor-0": ProcessState("actor-0", "running", orphan.pid, ticks, restarts=2),
    }
    path = files.state_path(tmp_path, "node-0")
    path.parent.mkdir(parents=True)
    # As if the clock had been set back meanwhile.
    state = files.NodeState(
        "run", "node-0", 1, 1, files.boot_id(), files.uptime_s(), 0.0, processes, "begun"
    )
    files.write(path, state)
    node = supervise(shell("learner-0", "exit 3"), shell("actor-0", ACTOR), start="begun")
    wait_until(lambda: node.of("actor-0").state == "waiting")
    assert orphan.poll() is None
    go.touch()
    node.wait_for("actor-0", "running")
    assert orphan.poll() is not None, "two copies ran"
    assert node.of("actor-0").restarts == 3
    assert node.of("learner-0") == processes["learner-0"]
