"""The supervisor: restarts failed processes, stops cleanly, and leaves nothing running."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from frontend import on_machine
from frontend.group import GroupOverError, Membership, interface_of
from frontend.process_state import (
    Seat,
    Spec,
    living_pids,
    log_path,
    read_state,
    start_ticks,
    state_path,
    to_json,
)
from frontend.project import ROOT
from frontend.rendezvous import Gathering, RendezvousServer
from frontend.supervisor import Supervisor, restart_delay_s
from tests.waiting import wait_until


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
    assert start_ticks(int(child.read_text())) is None


def test_children_that_an_exited_process_left_are_killed(tmp_path):
    run(make_spec(tmp_path, "sleep 1000 & echo $! > child"))
    assert start_ticks(int((tmp_path / "child").read_text())) is None


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


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def seat(rank, size, port):
    return Seat(rank, size, rank, size, 0, 1, "127.0.0.1", "127.0.0.1", port)


def test_members_start_together_in_every_attempt():
    group = Gathering(2)
    assert group.join(0, "a") == {"go": False, "over": "", "missing": [1]}
    group.store["/global/0"] = b"a stale address"
    assert group.join(1, "b")["go"]
    assert group.store == {}, "addresses of the previous attempt are left"
    assert group.join(0, "a")["go"]
    # Learner 1 fails, and is back before learner 0 has noticed: it has to wait for learner 0.
    assert group.join(1, "c") == {"go": False, "over": "", "missing": [0]}
    assert group.join(0, "d")["go"]
    assert group.join(1, "c")["go"]


def test_a_member_that_no_longer_polls_does_not_count():
    now = [0.0]
    group = Gathering(2, clock=lambda: now[0])
    group.join(1, "a")
    now[0] = 11.0
    assert not group.join(0, "b")["go"]


@pytest.fixture
def learners(tmp_path):
    """Yields `start`, which runs a learner's supervisor in a thread, and `join`."""
    port, threads, supervisors = free_port(), [], []

    def start(rank, script, size=2, **changes):
        spec = Spec(
            "run", f"learner-{rank}", ("sh", "-c", script), str(tmp_path), str(tmp_path),
            seat=seat(rank, size, port), **changes,
        )  # fmt: skip
        supervisors.append(Supervisor(spec, delay_s=lambda quick_failures: 0.0))
        threads.append(threading.Thread(target=supervisors[-1].run))
        threads[-1].start()

    def join():
        for thread in threads:
            thread.join(timeout=60)
        assert not any(thread.is_alive() for thread in threads)
        return [read_state(path) for path in sorted(Path(tmp_path).glob("processes/*.state.json"))]

    yield start, join
    for supervisor in supervisors:
        supervisor.stop()


def test_a_group_starts_together_and_restarts_together(learners, tmp_path):
    start, join = learners
    # Both write one line per start. Both fail the first time, as with Horovod when one fails.
    script = (
        "echo $HOROVOD_RANK/$HOROVOD_SIZE $HOROVOD_GLOO_IFACE >> starts0;"
        "until cmp -s starts0 starts1; do sleep .05; done; [ $(wc -l < starts0) = 2 ]"
    )
    start(0, script, max_restarts=3)
    wait_until(state_path(tmp_path, "learner-0").exists)
    assert not (tmp_path / "starts0").exists(), "learner 0 did not wait for learner 1"
    start(1, "echo 0/2 lo >> starts1; [ $(wc -l < starts1) = 2 ]", max_restarts=3)
    assert [(s.state, s.restarts) for s in join()] == [("finished", 1), ("finished", 1)]
    assert (tmp_path / "starts0").read_text() == "0/2 lo\n" * 2


def test_a_learner_without_restarts_ends_the_group_and_is_named(learners):
    start, join = learners
    start(0, "exit 1", max_restarts=9)
    start(1, "exit 1", max_restarts=0)
    states = join()
    assert [s.state for s in states] == ["failed", "failed"]
    assert "learner-1: exit status 1" in states[0].detail


def test_a_rendezvous_port_in_use_is_reported(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        spec = make_spec(tmp_path, "true", seat=seat(0, 2, taken.getsockname()[1]))
        status, state = run(spec)
    assert (status, state.state) == (2, "refused")
    assert "Address already in use" in state.detail


def test_the_others_stop_waiting_when_learner_0_is_lost():
    port, now = free_port(), [0.0]
    server = RendezvousServer("127.0.0.1", port, "run", 2)
    member = Membership(seat(1, 2, port), "run", lambda text: None, clock=lambda: now[0])

    def wait(seconds):
        server.close()
        now[0] += 61

    with pytest.raises(GroupOverError, match="learner-0 is unreachable"):
        member.gather(lambda: False, wait)


def test_the_rendezvous_of_another_run_is_not_joined():
    port = free_port()
    server = RendezvousServer("127.0.0.1", port, "another run", 1)
    now = [0.0]
    member = Membership(seat(1, 2, port), "run", lambda text: None, clock=lambda: now[0])

    def wait(seconds):
        now[0] += 601

    try:
        with pytest.raises(GroupOverError, match="serves another run"):
            member.gather(lambda: False, wait)
    finally:
        server.close()


def test_the_interface_of_an_address_is_found():
    assert interface_of("localhost") == "lo"
    assert interface_of("192.0.2.1") is None


@pytest.mark.cluster  # It needs a namespace for the host name.
def test_own_name_changes_the_host_name_of_its_command_only():
    before = socket.gethostname()
    print_name = [sys.executable, "-c", "import socket; print(socket.gethostname())"]
    command = [sys.executable, "-m", "frontend.own_name", "192.0.2.77", *print_name]
    assert subprocess.check_output(command, cwd=ROOT, text=True) == "192.0.2.77\n"
    assert socket.gethostname() == before
