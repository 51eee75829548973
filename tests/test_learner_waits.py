"""A learner that has been waiting for a minute says what it waits for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from impala_tf.learner import peer_watch
from impala_tf.learner.stall_watch import StallWatch
from tests.runs import PROJECT, free_port
from tests.waiting import wait_until


class World:
    """A learner of three, the others' ports closed, and a clock that the test moves."""

    def __init__(self, size: int = 3, rank: int = 0) -> None:
        self.now = 100.0
        self.absent: tuple[int, ...] = ()
        hosts = [f"127.0.0.1:{free_port()}" for _ in range(size)]
        self.stall_watch = StallWatch(hosts, rank, lambda: self.absent, lambda: self.now)
        self.batches = self.stall_watch.watch(iter("abc"))

    def warn_after(self, seconds: float) -> None:
        self.now += seconds
        self.stall_watch.warn(["actor-0", "actor-3"])


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_without_unrolls_it_names_the_actors_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    for seconds in (59.0, 2.0, 58.0, 3.0):
        world.warn_after(seconds)
    world.now += 60.0
    world.stall_watch.warn([])
    assert messages(caplog) == [
        "no batch for 61 s; waiting for unrolls from actor-0, actor-3",
        "no batch for 122 s; waiting for unrolls from actor-0, actor-3",
        "no batch for 182 s; waiting for unrolls from actors, but none has connected",
    ]


def test_an_update_without_a_batch_does_not_end_the_wait(caplog: pytest.LogCaptureFixture) -> None:
    world = World()

    def starved() -> Iterator[None]:
        for _ in range(2):
            world.warn_after(61.0)
            yield None

    assert list(world.stall_watch.watch(starved())) == [None, None]
    assert [line.partition(";")[0] for line in messages(caplog)] == [
        "no batch for 61 s",
        "no batch for 122 s",
    ]


def test_in_an_update_it_names_the_learners(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    next(world.batches)
    monkeypatch.setattr(peer_watch, "unreachable", lambda hosts, rank: [])
    world.warn_after(61.0)
    monkeypatch.setattr(peer_watch, "unreachable", lambda hosts, rank: [2])
    world.warn_after(61.0)
    assert messages(caplog) == [
        "learner-0: has waited 61 s for one of learner-1, learner-2",
        "learner-0: has waited 122 s for learner-2, which does not answer",
    ]


def test_after_an_update_it_names_who_had_no_batch(caplog: pytest.LogCaptureFixture) -> None:
    world = World(rank=1)
    next(world.batches)
    world.now += 60.2
    world.absent = (1, 2)  # itself is nobody whom it waited for
    next(world.batches)
    world.now += 1.0
    next(world.batches)  # quick: there was nothing to wait for
    assert messages(caplog) == ["learner-1: has waited 60 s for learner-2: no batch"]


def test_a_learner_alone_waits_for_nobody_in_an_update(caplog: pytest.LogCaptureFixture) -> None:
    world = World(size=1)
    next(world.batches)
    world.warn_after(1000.0)
    assert messages(caplog) == []


_SERVER = """
import sys, time
from pathlib import Path
from impala_tf.transport import credentials
import grpc
from concurrent import futures
folder = Path(sys.argv[1])
credentials.ensure(folder)
server = grpc.server(futures.ThreadPoolExecutor(1))
server.add_secure_port(sys.argv[2], credentials.server_credentials(folder))
server.start()
print("up", flush=True)
time.sleep(600)
"""


def is_stopped(pid: int) -> bool:
    """Whether every thread is: one that still runs may answer."""
    stats = Path(f"/proc/{pid}/task").glob("*/stat")
    return all(stat.read_text().rpartition(")")[2].split()[0] == "T" for stat in stats)


def test_who_is_stopped_or_gone_is_silent_and_who_lives_is_not(tmp_path: Path) -> None:
    """A stopped process' port still takes connections: the kernel does that for it."""
    hosts = [f"127.0.0.1:{free_port()}" for _ in range(4)]
    servers = {
        rank: subprocess.Popen(
            [sys.executable, "-c", _SERVER, str(tmp_path / str(rank)), hosts[rank]],
            cwd=PROJECT,
            stdout=subprocess.PIPE,
        )
        for rank in (1, 2)
    }
    try:
        for server in servers.values():
            assert server.stdout is not None
            assert server.stdout.readline() == b"up\n"
        os.kill(servers[2].pid, signal.SIGSTOP)
        wait_until(lambda: is_stopped(servers[2].pid))
        assert peer_watch.unreachable(hosts, rank=0, timeout_s=2.0) == [2, 3]
        assert peer_watch.unreachable(hosts, rank=3, timeout_s=2.0) == [0, 2]
    finally:
        for server in servers.values():
            server.kill()
            server.wait()


def test_nobody_else_is_nobody_silent() -> None:
    assert peer_watch.unreachable(["127.0.0.1:1"], rank=0) == []


def test_absence_is_to_have_answered_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a firewall a learner never answers: nobody is to hurry for that, again and again."""
    now = [100.0]
    quiet: list[int] = []
    looks: list[float] = []

    def silent(hosts: object, rank: int) -> list[int]:
        looks.append(now[0])
        return quiet

    monkeypatch.setattr(peer_watch, "unreachable", silent)
    peers = peer_watch.PeerWatch(["h:1", "h:2", "h:3"], rank=0, clock=lambda: now[0])
    absent_at = []
    both = [1, 2]
    for moment, who in ((100, [2]), (101, both), (106, both), (111, both), (116, []), (121, [1])):
        now[0], quiet[:] = float(moment), who
        absent_at += [moment] if peers.lost_peer() else []
    # A look is a handshake with every learner: every few seconds, not whenever asked.
    assert looks == [100.0, 106.0, 111.0, 116.0, 121.0]
    assert absent_at == [106, 121]
