"""A supervisor that is killed: its machine starts it again, and no process runs twice."""

import contextlib
import os
import signal
import subprocess

from impala_tf.cluster.node import state as files
from impala_tf.cluster.node.state import NodeState
from impala_tf.cluster.node.tmux import RunSession
from impala_tf.machine.supervision import ProcessState
from tests.cluster.test_supervisor import ACTOR, shell, supervise  # noqa: F401
from tests.helpers.waiting import wait_until


def is_back(node, before):
    state = node.state()
    processes = state.processes.values()
    return state.pid != before.pid and {each.state for each in processes} == {"running"}


def test_a_supervisor_that_was_killed_starts_again_and_says_so_in_its_log(node):
    state = node.launch("learner-0", "actor-0")
    os.kill(state.pid, signal.SIGKILL)
    wait_until(lambda: is_back(node, state))
    node.wait_until_up("learner-0", "actor-0", times=2)
    pids = state.processes["actor-0"].pid, node.state().processes["actor-0"].pid
    assert pids[0] != pids[1]
    assert files.start_ticks(pids[0]) is None, "a process runs twice"
    assert node.state().processes["actor-0"].restarts == 1
    log = files.supervisor_log(node.logdir, "node-0").read_text()
    assert "the supervisor has died (status 137); restart in 5 s" in log
    assert node.stop() == {"stopped": {"learner-0": 0, "actor-0": 0}, "left": {}}
    assert RunSession("impala").windows() == []


def test_a_supervisor_that_ended_well_is_not_started_again(node):
    state = node.launch("actor-0")
    (node.project / "finish").touch()
    wait_until(lambda: files.living_pids(node.state()) == {})
    wait_until(lambda: [w.dead for w in RunSession("impala").windows()] == [True, True])
    assert node.state().pid == state.pid
    assert node.state().processes["actor-0"].state == "finished"


def test_ctrl_c_in_its_window_ends_it_for_good(node):
    node.launch("actor-0")
    subprocess.run(["tmux", "send-keys", "-t", "=impala:=supervisor", "C-c"], check=True)
    wait_until(lambda: [w.dead for w in RunSession("impala").windows()] == [True, True])
    assert node.state().processes["actor-0"].state == "stopped"


def test_stopping_while_it_is_dead_starts_nothing(node):
    state = node.launch("actor-0")
    os.kill(state.pid, signal.SIGKILL)
    wait_until(lambda: files.living_pids(state) == {})
    node.stop()
    assert files.living_pids(node.state()) == {}
    assert RunSession("impala").windows() == []


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
        "actor-1": ProcessState("actor-1", "left"),
    }
    path = files.state_path(tmp_path, "node-0")
    path.parent.mkdir(parents=True)
    # As if the clock had been set back meanwhile.
    state = files.NodeState(
        "run", "node-0", 1, 1, files.boot_id(), files.uptime_s(), 0.0, processes, "begun"
    )
    files.write(path, state)
    scripts = {"learner-0": "exit 3", "actor-0": ACTOR, "actor-1": ACTOR}
    node = supervise(*(shell(name, text) for name, text in scripts.items()), start="begun")
    wait_until(lambda: node.of("actor-0").state == "waiting")
    assert orphan.poll() is None
    go.touch()
    node.wait_for("actor-0", "running")
    assert orphan.poll() is not None, "two copies ran"
    assert node.of("actor-0").restarts == 3
    assert node.of("learner-0") == processes["learner-0"]
    node.wait_for("actor-1", "running")


# --- seen from the launcher ---


def test_an_attached_launcher_says_what_starts_a_machine_again(run, capfd):
    """The kernel killed everything in the session; the learner stayed "running" for ever."""
    killed: list[NodeState] = []

    def kill_then_finish(status):
        if status is None:
            return
        if not killed:
            state = run.node()
            alive = files.living_pids(state)
            # The supervisor first: it must not say that it has stopped the others.
            for name in sorted(alive, key=lambda name: name != "supervisor"):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(alive[name], signal.SIGKILL)
            subprocess.run(["tmux", "kill-server"], check=True)
            wait_until(lambda: files.living_pids(state) == {})
            killed.append(state._replace(uptime_s=state.uptime_s - 60))
            files.write(files.state_path(run.logdir, "node-here"), killed[0])
        elif len(killed) == 1 and run.display.notes:
            killed.append(killed[0])
            assert run.command("restart", "this machine") == 0
        if "this machine: its supervisor is there again" in run.display.notes:
            (run.project / "finish").touch()

    assert run.launch(kill_then_finish) == 0
    assert run.display.notes[0].startswith("this machine: its supervisor is silent")
    assert "restart --logdir=" in run.display.notes[0]
    capfd.readouterr()
    assert run.command("logs", "supervisor") == 0
    assert "learner-0 finished: done" in capfd.readouterr().out
    assert run.command("fetch", f"--to={run.project}/fetched") == 0
    assert (run.project / "fetched" / "processes" / "supervisor-node-here.log").exists()
