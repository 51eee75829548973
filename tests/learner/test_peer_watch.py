"""Which of the other learners answer, and which one was lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from impala_tf.learner import peer_watch
from tests.helpers.clock import Clock
from tests.helpers.ports import free_port
from tests.helpers.runs import PROJECT
from tests.helpers.waiting import wait_until

TLS_SERVER = """
import sys, time
from pathlib import Path
from impala_tf.machine import certificates
from impala_tf.transport import credentials
import grpc
from concurrent import futures
folder = Path(sys.argv[1])
certificates.ensure(folder)
server = grpc.server(futures.ThreadPoolExecutor(1))
server.add_secure_port(sys.argv[2], credentials.server_credentials(folder))
server.start()
print("up", flush=True)
time.sleep(600)
"""


def is_stopped(pid: int) -> bool:
    """Whether every thread is stopped: one that still runs might answer."""
    stats = Path(f"/proc/{pid}/task").glob("*/stat")
    return all(stat.read_text().rpartition(")")[2].split()[0] == "T" for stat in stats)


def test_a_stopped_or_dead_learner_is_unreachable_and_a_living_one_is_not(tmp_path: Path) -> None:
    """The kernel accepts TCP connections even for a stopped process."""
    hosts = [f"127.0.0.1:{free_port()}" for _ in range(4)]
    servers = {
        rank: subprocess.Popen(
            [sys.executable, "-c", TLS_SERVER, str(tmp_path / str(rank)), hosts[rank]],
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


def test_a_single_learner_has_no_unreachable_peer() -> None:
    assert peer_watch.unreachable(["127.0.0.1:1"], rank=0) == []


def test_a_peer_is_lost_only_if_it_answered_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a firewall a learner never answers; that must not end every wait for a batch."""
    clock = Clock(100.0)
    gone: list[int] = []
    checked_at: list[float] = []

    def unreachable(hosts: object, rank: int) -> list[int]:
        checked_at.append(clock.now)
        return gone

    monkeypatch.setattr(peer_watch, "unreachable", unreachable)
    peers = peer_watch.PeerWatch(["h:1", "h:2", "h:3"], rank=0, clock=clock)
    lost_at = []
    both = [1, 2]
    for moment, who in ((100, [2]), (101, both), (106, both), (111, both), (116, []), (121, [1])):
        clock.now, gone[:] = float(moment), who
        lost_at += [moment] if peers.lost_peer() else []
    # A check is a handshake with every learner: every few seconds, not at every call.
    assert checked_at == [100.0, 106.0, 111.0, 116.0, 121.0]
    assert lost_at == [106, 121]
