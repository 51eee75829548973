"""Learners meet through this project's store; Horovod starts no server of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from impala_tf.cluster.node.gathering import Gathering
from impala_tf.cluster.node.group import gloo_environment
from impala_tf.cluster.node.rendezvous import Address, RendezvousServer, StoreProxy
from impala_tf.cluster.node.state import GroupInfo
from impala_tf.machine import certificates
from tests.helpers.ports import free_port
from tests.helpers.runs import PROJECT

# Its elastic rendezvous and its key-value store, which have advisories, are servers of this class.
LEARNER = """
import socketserver
def refuse(*arguments, **named): raise AssertionError("a server starts")
socketserver.BaseServer.__init__ = refuse
from impala_tf.learner.learner_group import HorovodGroup
print(HorovodGroup().gather("met"))
"""


def test_two_learners_meet_without_a_server_of_horovod(tmp_path: Path) -> None:
    """CVE-2024-10190 and CVE-2026-31234: it unpickles what its servers get."""
    pytest.importorskip("horovod")
    certificates.create(tmp_path / "credentials")
    address = Address("127.0.0.1", free_port(), "run", tmp_path / "credentials")
    server, proxy = RendezvousServer(address, Gathering(2)), StoreProxy(address)
    try:
        learners = [
            subprocess.Popen(
                [sys.executable, "-c", LEARNER],
                env={**os.environ, **gloo_environment(info, (0, 1), proxy)},
                cwd=PROJECT,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )  # fmt: skip
            for info in (GroupInfo(rank, ("127.0.0.1",) * 2, ("h",) * 2, 0) for rank in range(2))
        ]
        for learner in learners:
            out, err = learner.communicate(timeout=300)
            assert out == "['met', 'met']\n", err
    finally:
        proxy.close()
        server.close()
