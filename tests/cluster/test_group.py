"""The group of learners: who takes part, for how long they wait, and how they give up."""

import functools
import http.client
import shutil
import threading
import time

import pytest

from impala_tf.cluster.node import gathering, group
from impala_tf.cluster.node.gathering import Gathering
from impala_tf.cluster.node.group import Membership
from impala_tf.cluster.node.rendezvous import Address, Client, RendezvousServer, StoreProxy
from impala_tf.cluster.node.state import GroupInfo
from impala_tf.machine import certificates
from impala_tf.machine.supervision import Command, GiveUpError, ProcessState, SupervisedProcess
from tests.helpers.clock import Clock
from tests.helpers.ports import free_port
from tests.helpers.waiting import wait_until


@pytest.fixture
def key_folder(tmp_path):
    certificates.create(tmp_path / "credentials")
    return tmp_path / "credentials"


@pytest.fixture
def member(key_folder):
    """Makes a member of a group of two learners; all are closed when the test ends."""
    made, port = [], free_port()

    def make(number, log_event=print, **more):
        place = GroupInfo(number, ("127.0.0.1",) * 2, ("h",) * 2, port)
        made.append(Membership(place, "run", key_folder, log_event, **more))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_a_learner_without_restarts_ends_the_group_and_is_named(member):
    first, second = member(0), member(1)
    second.end(ProcessState("learner-1", "failed", detail="exit status 1"))
    with pytest.raises(GiveUpError, match="learner-1: exit status 1"):
        first.gather(lambda: False)


def test_a_learner_that_is_cut_off_waits_for_as_long_as_that_lasts(member, monkeypatch):
    """A network that is cut for an hour ended it for good, or later even the whole run."""

    def unreachable(*_, **message):
        raise TimeoutError("timed out")

    monkeypatch.setattr(Client, "ask", unreachable)
    monkeypatch.setattr(group, "POLL_S", 0.0)
    clock = Clock()
    events: list[str] = []
    second = member(1, events.append, has_trained=True, clock=clock)

    def hours_later(hours):
        clock.now += 100.0
        return clock.now > 3600 * hours

    assert not second.gather(functools.partial(hours_later, 24))
    assert "has waited 100 s for learner-0, which is unreachable at 127.0.0.1" in events[0]
    # If nobody is there on learner 0's machine, the run has ended.
    refused = Refused()
    monkeypatch.setattr(Client, "ask", refused.ask)
    with pytest.raises(GiveUpError, match=r"waited \d+ min for learner-0"):
        second.gather(functools.partial(hours_later, 48))
    calls = refused.calls
    second.end(ProcessState("learner-1", "failed", detail="waited"))
    assert refused.calls == calls, "it told a group that may train that it is over"


def test_a_learner_that_hangs_is_killed(member, tmp_path, monkeypatch):
    """It had started in the future, by a clock that was set back: it did not seem to run long."""
    monkeypatch.setattr(gathering, "HUNG_S", 0.5)
    monkeypatch.setattr(gathering, "ASK_S", 0.1)
    first, second = member(0), member(1)
    command = Command("learner-0", ("sleep", "1000"), str(tmp_path), str(tmp_path / "log"))
    process = SupervisedProcess(command, before_start=first.gather)
    ended = threading.Event()
    process.start()
    try:
        assert second.gather(ended.is_set)
        wait_until(lambda: process.state.state == "running")
        process.state = process.state._replace(started_unix_s=time.time() + 3600)
        first.watch(process)
        threading.Thread(target=second.gather, args=(ended.is_set,), daemon=True).start()
        wait_until(lambda: process.state.restarts == 1, 60)
    finally:
        ended.set()
        process.stop()
        process.join()


class Refused:
    """Stands for a client where nobody listens; counts its calls."""

    calls = 0

    def ask(self, *_, **message):
        self.calls += 1
        raise ConnectionRefusedError("refused")


# --- who may talk to the rendezvous ---


def status_of(port, method, path):
    """Returns the status of the answer to a request with a body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request(method, path, b"stolen")
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.fixture
def rendezvous(key_folder):
    address = Address("127.0.0.1", free_port(), "run", key_folder)
    server = RendezvousServer(address, Gathering(2))
    yield address, server
    server.close()


def test_only_learners_of_the_run_are_answered(rendezvous, key_folder, tmp_path):
    """Neither its actors, nor those of other runs, nor a server of another run is trusted."""
    address, server = rendezvous
    certificates.create(tmp_path / "other")
    actor = tmp_path / "actor"
    actor.mkdir()
    shutil.copy(key_folder / "ca.pem", actor)
    shutil.copy(key_folder / "actor.key", actor / "learner.key")
    for changed in (
        {"credentials": actor},
        {"credentials": tmp_path / "other"},
        {"run_id": "another"},
    ):
        with pytest.raises(ConnectionRefusedError, match="serves another run"):
            Client(address._replace(**changed)).ask("leave", reason="x")
    assert server.gathering.join(0, "a")["over"] == ""
    assert Client(address).ask("join", number=0, attempt="a")["missing"] == [1]


def test_other_users_of_a_machine_cannot_sign_with_its_proxy(rendezvous):
    """Any process there could replace the addresses of a group."""
    address, _ = rendezvous
    proxy = StoreProxy(address)
    try:
        for path in ("/global/0", f"/{'0' * 32}:{proxy.port}/global/0", "/"):
            for method in ("GET", "PUT", "DELETE"):
                assert status_of(proxy.port, method, path) == 403
        _, _, own = proxy.address.partition("/")
        assert status_of(proxy.port, "PUT", f"/{own}:{proxy.port}/global/0") != 403
    finally:
        proxy.close()
