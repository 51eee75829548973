"""The group of learners: they start together, restart together, and give up together."""

import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from frontend.group import GroupOverError, Membership, interface_of
from frontend.process_state import Seat, Spec, read_state, state_path
from frontend.project import ROOT
from frontend.rendezvous import Gathering, RendezvousServer
from frontend.supervisor import Supervisor
from tests.helpers.ports import free_port
from tests.helpers.waiting import wait_until


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
        spec = Spec(
            "run", "learner-0", ("true",), str(tmp_path), str(tmp_path),
            seat=seat(0, 2, taken.getsockname()[1]),
        )  # fmt: skip
        assert Supervisor(spec).run() == 2
    state = read_state(state_path(tmp_path, "learner-0"))
    assert state is not None
    assert state.state == "refused"
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
