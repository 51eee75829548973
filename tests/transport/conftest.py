"""Servers and clients that are closed when a test ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from impala_tf.machine import certificates
from impala_tf.transport import (
    ActorClient,
    LearnerServer,
    LearnerService,
    Pushes,
    Route,
    RunTerms,
    credentials,
    wire,
)
from impala_tf.types import Unroll
from tests.helpers.wire import RUN, SPECS, Connect, FakeLearner, Serve, StubOf

_PUSHES_OPTIONS = {"on_refused", "grants", "most_waiting_bytes"}


@pytest.fixture(scope="session")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run") / "credentials"
    certificates.create(path)
    return path


@pytest.fixture
def learner() -> FakeLearner:
    return FakeLearner()


@pytest.fixture
def serve(directory: Path) -> Iterator[Serve]:
    started: list[tuple[FakeLearner, LearnerServer]] = []

    def start(
        learner: FakeLearner,
        port: int = 0,
        terms: RunTerms = RUN,
        folder: Path = directory,
        **options: Any,
    ) -> LearnerServer:
        of_pushes = {name: options.pop(name) for name in _PUSHES_OPTIONS & options.keys()}
        pushes = Pushes(terms, learner.put, **of_pushes)
        service = LearnerService(pushes, learner.parameters, **options)
        one = LearnerServer(f"127.0.0.1:{port}", folder, service)
        one.start()
        started.append((learner, one))
        return one

    yield start
    for learner, one in started:
        learner.close_queue()
        one.stop(0)


@pytest.fixture
def connect(directory: Path) -> Iterator[Connect]:
    clients: list[ActorClient] = []

    def start(
        port: int | Route,
        actor_id: str = "actor-0",
        specs: Unroll = SPECS,
        digest: str = RUN.config_digest,
        folder: Path = directory,
        **options: Any,
    ) -> ActorClient:
        address = f"127.0.0.1:{port}" if isinstance(port, int) else port
        one = ActorClient(address, folder, actor_id, specs, digest, num_environments=8, **options)
        clients.append(one)
        return one

    yield start
    for one in clients:
        one.close()


@pytest.fixture
def stub_of(directory: Path) -> Iterator[StubOf]:
    """Calls by hand, for what ActorClient never does."""
    channels: list[grpc.Channel] = []

    def stub(one: LearnerServer, folder: Path = directory) -> Any:
        options = [("grpc.ssl_target_name_override", certificates.LEARNER_NAME)]
        with_certificate = credentials.channel_credentials(folder)
        channels.append(grpc.secure_channel(f"127.0.0.1:{one.port}", with_certificate, options))
        return wire.stub(channels[-1])

    yield stub
    for channel in channels:
        channel.close()
