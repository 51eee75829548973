"""The group of learners: they start together, restart together, and give up together."""

import http.client
import shutil
import threading
import time

import pytest

from impala_tf.cluster.node import gathering, group
from impala_tf.cluster.node.gathering import Gathering
from impala_tf.cluster.node.group import Membership
from impala_tf.cluster.node.rendezvous import Address, Client, RendezvousServer, StoreProxy
from impala_tf.cluster.node.state import (
    GroupInfo,
    ProcessSpec,
    new_orders,
    orders_path,
    read_state,
    state_path,
    write,
)
from impala_tf.cluster.node.supervisor import NodeSupervisor
from impala_tf.machine import certificates
from impala_tf.machine.supervision import GiveUpError, ProcessState
from tests.helpers.clock import Clock
from tests.helpers.ports import free_port


def group_info(number, size, port):
    return GroupInfo(number, ("127.0.0.1",) * size, ("h",) * size, port)


@pytest.fixture
def learners(tmp_path):
    """Yields `start`, which runs a learner's supervisor in a thread, and `join`."""
    port, threads, supervisors, nodes = free_port(), [], [], []
    certificates.create(tmp_path / "credentials")

    def start(rank, script, size=2, **changes):
        code = f"import os; os.execvp('sh', ['sh', '-c', {script!r}])"
        process = ProcessSpec(
            f"learner-{rank}", "h", ("-c", code), group=group_info(rank, size, port), **changes
        )
        node = f"node-{rank}"
        orders = new_orders("run", node, tmp_path, [process])
        path = orders_path(tmp_path, orders.node)
        path.parent.mkdir(exist_ok=True)
        write(path, orders)
        supervisors.append(NodeSupervisor(path))
        nodes.append(orders.node)
        threads.append(threading.Thread(target=supervisors[-1].run))
        threads[-1].start()

    def join():
        for thread in threads:
            thread.join(timeout=120)
        assert not any(thread.is_alive() for thread in threads)
        states = [read_state(state_path(tmp_path, node)) for node in nodes]
        return [process for each in states if each for process in each.processes.values()]

    yield start, join
    for supervisor in supervisors:
        supervisor.stop()


def test_a_group_starts_together_and_restarts_together(learners, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    start, join = learners
    # Both write one line per start. Both fail the first time, as with Horovod when one fails.
    script = (
        "echo $HOROVOD_RANK/$HOROVOD_SIZE $HOROVOD_GLOO_IFACE >> starts0;"
        "until cmp -s starts0 starts1; do sleep .05; done; [ $(wc -l < starts0) = 2 ]"
    )
    start(0, script, max_restarts=3)
    time.sleep(1.0)
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


@pytest.fixture
def key_folder(tmp_path):
    certificates.create(tmp_path / "credentials")
    return tmp_path / "credentials"


def test_a_learner_that_is_cut_off_waits_for_as_long_as_that_lasts(key_folder, monkeypatch):
    """A network that is cut for an hour ended it for good, or later even the whole run."""

    def unreachable(*_, **message):
        raise TimeoutError("timed out")

    monkeypatch.setattr(Client, "ask", unreachable)
    monkeypatch.setattr(group, "POLL_S", 0.0)
    clock = Clock()
    events: list[str] = []
    second = Membership(
        group_info(1, 2, free_port()), "run", key_folder, events.append, has_trained=True,
        clock=clock,
    )  # fmt: skip
    try:

        def hours_later(hours):
            clock.now += 100.0
            return clock.now > 3600 * hours

        assert not second.gather(lambda: hours_later(24))
        assert "has waited 100 s for learner-0, which is unreachable at 127.0.0.1" in events[0]
        # If nobody is there on learner 0's machine, the run has ended.
        refused = Refused()
        monkeypatch.setattr(Client, "ask", refused.ask)
        with pytest.raises(GiveUpError, match=r"waited \d+ min for learner-0"):
            second.gather(lambda: hours_later(48))
        calls = refused.calls
        second.end(ProcessState("learner-1", "failed", detail="waited"))
        assert refused.calls == calls, "it told a group that may train that it is over"
    finally:
        second.close()


class Refused:
    """Stands for a client where nobody listens; counts its calls."""

    calls = 0

    def ask(self, *_, **message):
        self.calls += 1
        raise ConnectionRefusedError("refused")


# --- who may talk to the rendezvous ---


def raw(port, method, path, body=b"", headers=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read()
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
                assert raw(proxy.port, method, path, b"stolen")[0] == 403
        _, _, own = proxy.address.partition("/")
        assert raw(proxy.port, "PUT", f"/{own}:{proxy.port}/global/0", b"mine")[0] != 403
    finally:
        proxy.close()


def test_the_rendezvous_of_another_run_is_not_joined(key_folder, monkeypatch):
    monkeypatch.setattr(gathering, "PATIENCE_S", 1.0)
    monkeypatch.setattr(gathering, "SETTLE_S", 1.0)
    port = free_port()
    first, second = (
        Membership(group_info(rank, 2, port), run_id, key_folder, print)
        for rank, run_id in ((0, "another run"), (1, "run"))
    )
    try:
        with pytest.raises(GiveUpError, match="serves another run"):
            second.gather(lambda: False)
    finally:
        first.close()
        second.close()


def test_a_learner_whose_packets_come_from_another_address_takes_part(key_folder):
    """As behind NAT: all packets come from 127.0.0.1, which is no learner's `ip`."""
    hosts, port = ("127.0.0.2", "192.0.2.2"), free_port()
    members = [
        Membership(GroupInfo(number, hosts, hosts, port), "run", key_folder, print)
        for number in range(2)
    ]
    started = []
    threads = [
        threading.Thread(target=lambda each=each: started.append(each.gather(lambda: False)))
        for each in members
    ]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=90)
        assert started == [True, True]
    finally:
        for each in members:
            each.close()
