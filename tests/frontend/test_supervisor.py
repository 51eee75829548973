"""The supervisor: restarts failed processes, stops cleanly, and leaves nothing running."""

import json
import os
import signal
import subprocess
import sys
import threading

import pytest

from frontend import on_machine
from frontend.process_state import (
    Spec,
    living_pids,
    log_path,
    read_state,
    start_ticks,
    state_path,
    to_json,
)
from frontend.project import ROOT
from frontend.supervisor import Supervisor, restart_delay_s
from tests.helpers.waiting import wait_until


def make_spec(tmp_path, script, **changes):
    argv = ("sh", "-c", script)
    return Spec("run", "actor-0", argv, str(tmp_path), str(tmp_path), **changes)


def run(spec, delay_s=lambda quick_failures: 0.0, **arguments):
    """Runs a supervisor in this process; returns its exit status and last state."""
    status = Supervisor(spec, delay_s=delay_s, **arguments).run()
    return status, read_state(state_path(spec.logdir, spec.name))


@pytest.fixture
def supervised(tmp_path):
    """Starts a supervisor as its window would; stops it and its process afterwards."""
    started = []

    def start(script, **changes):
        spec = make_spec(tmp_path, script, **changes)
        path = tmp_path / "spec.json"
        path.write_text(to_json(spec))
        command = [sys.executable, "-m", "frontend.supervisor", str(path)]
        started.append(subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE))
        file = state_path(tmp_path, "actor-0")
        return started[-1], lambda: read_state(file)

    yield start
    for process in started:
        process.terminate()
        process.wait(timeout=60)
        if process.stdout is not None:
            process.stdout.close()


def test_a_process_that_is_done_is_not_restarted(tmp_path):
    status, state = run(make_spec(tmp_path, "echo once"))
    assert (status, state.state, state.restarts) == (0, "finished", 0)
    assert log_path(tmp_path, "actor-0").read_text().count("once\n") == 1


def test_a_process_is_restarted_until_it_succeeds(tmp_path):
    script = "echo started >> starts; [ $(wc -l < starts) = 4 ]"
    delays = []

    def delay_s(quick_failures):
        delays.append(quick_failures)
        return 0.0

    status, state = run(make_spec(tmp_path, script), delay_s)
    assert (status, state.state, state.restarts) == (0, "finished", 3)
    assert delays == [1, 2, 3], "failures within a minute must count as quick"


def test_the_log_says_when_no_restart_is_left(tmp_path):
    status, state = run(make_spec(tmp_path, "echo started >> starts; exit 7", max_restarts=2))
    assert (status, state.state, state.exit_status) == (1, "failed", 7)
    assert (tmp_path / "starts").read_text() == "started\n" * 3
    log = log_path(tmp_path, "actor-0").read_text()
    assert "; no restart is left (--max_restarts=2)" in log


def test_a_process_with_unusable_flags_is_not_restarted(tmp_path):
    status, state = run(make_spec(tmp_path, "exit 2"))
    assert (status, state.state, state.restarts) == (2, "refused", 0)


def test_a_missing_program_is_reported_and_not_restarted(tmp_path):
    spec = Spec("run", "actor-0", ("/no/python",), str(tmp_path), str(tmp_path))
    status, state = run(spec)
    assert (status, state.state) == (2, "refused")
    assert "No such file" in state.detail


def test_after_quick_failures_restarts_wait_ten_seconds_or_more():
    assert restart_delay_s(0) == 1.0
    assert [restart_delay_s(n) for n in (1, 2, 3, 4, 5, 90)] == [10, 20, 40, 80, 120, 120]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_stopped_supervisor_lets_its_process_stop_cleanly(supervised, tmp_path, number):
    script = "trap 'echo saved; exit 0' TERM; echo up; while :; do sleep .05; done"
    process, state = supervised(script)
    wait_until(lambda: "up\n" in log_path(tmp_path, "actor-0").read_text()
               if state() else False)  # fmt: skip
    process.send_signal(number)
    assert process.wait(timeout=60) == 0
    assert state().state == "stopped"
    assert b"saved" in process.stdout.read(), "the window does not show the output of the process"


def test_a_process_that_will_not_stop_is_killed_with_its_children(tmp_path):
    script = "trap '' TERM; sleep 1000 & echo $! > child; sleep 1000"
    supervisor = Supervisor(make_spec(tmp_path, script), stop_timeout_s=0.3)
    child = tmp_path / "child"

    def stop_once_it_runs():
        wait_until(lambda: child.exists() and child.read_text().endswith("\n"))
        supervisor.stop()

    threading.Thread(target=stop_once_it_runs).start()
    supervisor.run()
    state = read_state(state_path(tmp_path, "actor-0"))
    assert state is not None
    assert (state.state, state.exit_status) == ("stopped", -signal.SIGKILL)
    wait_until(lambda: start_ticks(int(child.read_text())) is None, what="end of the child")


def test_children_that_an_exited_process_left_are_killed(tmp_path):
    run(make_spec(tmp_path, "sleep 1000 & echo $! > child"))
    child = int((tmp_path / "child").read_text())
    wait_until(lambda: start_ticks(child) is None, what="end of the child")


def test_the_process_gets_its_environment_and_the_supervisors_pid(tmp_path):
    spec = make_spec(
        tmp_path, 'echo "$IMPALA_TF_PARENT|$CUDA_VISIBLE_DEVICES" > seen',
        environment={"CUDA_VISIBLE_DEVICES": "$(id);x"},
    )  # fmt: skip
    run(spec)
    assert (tmp_path / "seen").read_text() == f"{os.getpid()}|$(id);x\n"


def test_a_closed_window_does_not_end_the_process(tmp_path, supervised):
    process, state = supervised("echo a; while [ ! -e go ]; do sleep .05; done; echo b; sleep .3")
    wait_until(lambda: state() and state().state == "running")
    process.stdout.close()
    (tmp_path / "go").touch()
    assert process.wait(timeout=60) in (0, 120)
    assert state().state == "finished"


def test_stop_ends_only_the_processes_of_its_run(supervised, tmp_path):
    process, state = supervised("sleep 1000")
    wait_until(lambda: state() and state().child_pid)
    other = subprocess.Popen(["sleep", "1000"])
    try:
        assert on_machine.stop(str(tmp_path), "another run", ["actor-0"], 5) == {
            "stopped": {}, "left": {}}  # fmt: skip
        # A stale state: its pid now belongs to another process.
        stale = {**vars(state()), "name": "actor-1", "pid": other.pid, "pid_ticks": 1}
        stale |= {"child_pid": None, "child_ticks": None}
        state_path(tmp_path, "actor-1").write_text(json.dumps(stale))
        done = on_machine.stop(str(tmp_path), "run", ["actor-0", "actor-1", "actor-2"], 20)
        assert done == {"stopped": {"actor-0": -signal.SIGTERM}, "left": {}}
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_stop_reports_processes_that_did_not_stop(supervised, tmp_path):
    process, state = supervised("trap '' TERM; while :; do sleep .05; done")
    wait_until(lambda: state() and state().child_pid)
    os.kill(process.pid, signal.SIGSTOP)
    try:
        done = on_machine.stop(str(tmp_path), "run", ["actor-0"], 0.3)
        assert done == {"stopped": {}, "left": {"actor-0": sorted(living_pids(state()))}}
    finally:
        os.kill(state().child_pid, signal.SIGKILL)
        os.kill(process.pid, signal.SIGCONT)


# --- the group of learners ---
