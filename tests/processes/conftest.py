"""The parts of a small learner process, made in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from impala_tf.cluster.node.gathering import Gathering
from impala_tf.cluster.node.group import gloo_environment
from impala_tf.cluster.node.rendezvous import Address, RendezvousServer, StoreProxy
from impala_tf.cluster.node.state import GroupInfo
from impala_tf.config import Given
from impala_tf.learner.learner_group import LearnerGroup
from impala_tf.machine import certificates
from impala_tf.machine.process_lifetime import StopRequest
from impala_tf.processes.common import logdir_of, resolve
from impala_tf.processes.learner_main import LearnerProcess
from tests.helpers.ports import free_port
from tests.helpers.runs import Run


@pytest.fixture
def build(tmp_path: Path) -> Iterator[Callable[..., LearnerProcess]]:
    """Makes a learner's parts, with flags; always in the same logdir: a second one resumes."""
    made: list[LearnerProcess] = []

    def close() -> None:
        for parts in made:
            parts.queue.close()
            parts.server.stop(0)
            parts.recorder.close()
        made.clear()

    def make(**more: Any) -> LearnerProcess:
        close()
        flags = Given().replace(
            **{
                "level_name": "CartPole-v1",
                "logdir": str(tmp_path / "run"),
                "learner_hosts": "127.0.0.1:0",
                **more,
            },
        )
        config, spec = resolve(flags)
        made.append(LearnerProcess(config, spec, logdir_of(config), LearnerGroup(), StopRequest()))
        return made[-1]

    yield make
    close()


@pytest.fixture
def start_pair(
    start: Callable[..., Run], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., tuple[list[str], list[Run]]]]:
    """Starts two learners that form a group, without supervisors; returns their addresses, too."""
    folder = tmp_path_factory.mktemp("rendezvous") / "credentials"
    certificates.create(folder)
    address = Address("127.0.0.1", free_port(), "run", folder)
    server, proxy = RendezvousServer(address, Gathering(2)), StoreProxy(address)

    def make(
        *flags: str, script: list[str] | None = None, **variables: str
    ) -> tuple[list[str], list[Run]]:
        hosts = [f"127.0.0.1:{free_port()}" for _ in range(2)]
        flags = (*flags, "--job_name=learner", f"--learner_hosts={','.join(hosts)}")
        runs = []
        for rank in range(2):
            info = GroupInfo(rank, ("127.0.0.1",) * 2, ("h",) * 2, 0)
            environment = {**gloo_environment(info, (0, 1), proxy), **variables}
            runs.append(start(*flags, environment=environment, script=script))
        return hosts, runs

    yield make
    proxy.close()
    server.close()
