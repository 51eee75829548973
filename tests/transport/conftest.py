"""Servers and clients that are closed when a test ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from impala_tf.machine import certificates
from impala_tf.transport import (
    ActorClient,
    Infer,
    LearnerServer,
    LearnerService,
    Networks,
    PushReport,
    RunIdentity,
    credentials,
)
from impala_tf.transport.stub import Stub
from impala_tf.types import Unroll
from tests.helpers.wire import RUN, SPECS, Connect, FakeLearner, Serve, StubOf


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
        run: RunIdentity = RUN,
        folder: Path = directory,
        infer: Infer | None = None,
        networks: Networks | None = None,
        least_grants: int | None = None,
        run_steps: int = 0,
        on_stale: Callable[[PushReport], None] | None = None,
    ) -> LearnerServer:
        service = LearnerService(
            run,
            learner.put,
            learner.parameters,
            learner.reports.put,
            infer=infer,
            networks=networks,
            least_grants=least_grants,
            run_steps=run_steps,
            on_stale=on_stale,
        )
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
        port: int,
        actor_id: str = "actor-0",
        specs: Unroll = SPECS,
        digest: str = RUN.config_digest,
        on_retry: Callable[[float, str], None] | None = None,
    ) -> ActorClient:
        one = ActorClient(
            f"127.0.0.1:{port}", directory, actor_id, specs, digest, on_retry, num_environments=8
        )
        clients.append(one)
        return one

    yield start
    for one in clients:
        one.close()


@pytest.fixture
def stub_of(directory: Path) -> Iterator[StubOf]:
    """Calls by hand, for what ActorClient never does."""
    channels: list[grpc.Channel] = []

    def stub(one: LearnerServer) -> Any:
        options = [("grpc.ssl_target_name_override", certificates.LEARNER_NAME)]
        with_certificate = credentials.channel_credentials(directory)
        channels.append(grpc.secure_channel(f"127.0.0.1:{one.port}", with_certificate, options))
        return Stub(channels[-1])

    yield stub
    for channel in channels:
        channel.close()
