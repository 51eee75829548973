"""A run's certificates: who can connect, who cannot, and what the files reveal."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from impala_tf.config import ConfigError
from impala_tf.machine import certificates
from impala_tf.transport import credentials, impala_pb2
from impala_tf.transport.wire import METHOD, SERVICE
from tests.helpers.wire import FakeLearner, Peer


@pytest.fixture(scope="module")
def other_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The credentials of another run."""
    path = tmp_path_factory.mktemp("other") / "credentials"
    certificates.create(path)
    return path


def read(folder: Path, *names: str) -> list[bytes]:
    return [(folder / name).read_bytes() for name in names]


def shake_hands(
    port: int, channel_credentials: grpc.ChannelCredentials | None, name: str = "learner.impala"
) -> Any:
    """Calls a server that has a certificate for `name`; returns its answer."""
    peer = Peer(port, channel_credentials, name)
    try:
        return peer.ask(hello={})
    finally:
        peer.close()


def test_an_actor_of_the_run_needs_only_the_files_for_actors(
    learner: FakeLearner, directory: Path, tmp_path: Path
) -> None:
    for name in certificates.ACTOR_FILES:
        shutil.copy(directory / name, tmp_path / name)
    reply = shake_hands(learner.serve().port, credentials.channel_credentials(tmp_path))
    assert reply.startswith("actor_id")  # its certificate was accepted, but not its hello
    with pytest.raises(ConfigError, match="learner.key"):
        credentials.server_credentials(tmp_path)


PEERS: dict[str, Callable[[Path, Path], grpc.ChannelCredentials | None]] = {
    "no TLS": lambda run, other: None,
    "no certificate": lambda run, other: grpc.ssl_channel_credentials(*read(run, "ca.pem")),
    "another run's actor": lambda run, other: credentials.channel_credentials(other),
    "another run's actor that trusts this run's learner": lambda run, other: (
        grpc.ssl_channel_credentials(*read(run, "ca.pem"), *read(other, "actor.key", "actor.pem"))
    ),
    "this run's learner": lambda run, other: grpc.ssl_channel_credentials(
        *read(run, "ca.pem", "learner.key", "learner.pem")
    ),
}


@pytest.mark.parametrize("peer", PEERS)
def test_who_is_no_actor_of_the_run_is_not_answered(
    learner: FakeLearner, directory: Path, other_directory: Path, peer: str
) -> None:
    port = learner.serve().port
    with pytest.raises(grpc.RpcError) as refused:
        shake_hands(port, PEERS[peer](directory, other_directory))
    assert refused.value.code() == grpc.StatusCode.UNAVAILABLE


def admits(requests: object, context: grpc.ServicerContext) -> Iterator[bytes]:
    """A learner that accepts every actor."""
    yield impala_pb2.FromLearner(welcome={"run_id": "run-1"}).SerializeToString()


@pytest.mark.parametrize(("role", "accepted"), [("learner", True), ("actor", False)])
def test_an_actors_certificate_cannot_be_used_by_a_server(
    directory: Path, role: str, accepted: bool
) -> None:
    """A stolen actor key must not make its thief a learner for the other actors.

    The client asks for the name in the certificate, so that only its purpose is wrong.
    """
    authority, key, certificate = read(directory, "ca.pem", f"{role}.key", f"{role}.pem")
    server = grpc.server(futures.ThreadPoolExecutor(2))
    handlers = {METHOD: grpc.stream_stream_rpc_method_handler(admits)}
    service = grpc.method_handlers_generic_handler(SERVICE, handlers)
    server.add_generic_rpc_handlers((service,))
    port = server.add_secure_port(
        "127.0.0.1:0", grpc.ssl_server_credentials([(key, certificate)], authority, True)
    )
    server.start()
    try:
        client = credentials.channel_credentials(directory)
        if accepted:
            assert shake_hands(port, client, f"{role}.impala").run_id == "run-1"
        else:
            with pytest.raises(grpc.RpcError):
                shake_hands(port, client, f"{role}.impala")
    finally:
        server.stop(0).wait()


def test_files_are_private_and_the_authoritys_key_is_not_stored(directory: Path) -> None:
    names = {path.name for path in directory.iterdir()}
    assert names == {"ca.pem", "learner.pem", "learner.key", "actor.pem", "actor.key"}
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()} == {0o600}
    authority = x509.load_pem_x509_certificate((directory / "ca.pem").read_bytes()).public_key()
    for path in directory.glob("*.key"):
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
        assert key.public_key() != authority
    assert [path.name for path in directory.parent.iterdir()] == [directory.name]


def test_a_resumed_run_keeps_its_credentials_and_so_its_actors(tmp_path: Path) -> None:
    directory = tmp_path / "logdir" / "credentials"
    certificates.ensure(directory)
    first = {path.name: path.read_bytes() for path in directory.iterdir()}
    certificates.ensure(directory)
    with pytest.raises(ConfigError, match=str(directory)):
        certificates.create(directory)
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == first


def test_processes_that_create_credentials_together_get_one_set(tmp_path: Path) -> None:
    directory = tmp_path / "credentials"
    with futures.ThreadPoolExecutor(8) as threads:
        list(threads.map(certificates.ensure, [directory] * 8))
    credentials.server_credentials(directory)
    assert [path.name for path in tmp_path.iterdir()] == ["credentials"]


def test_a_failed_creation_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def disk_full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", disk_full)
    with pytest.raises(ConfigError, match="No space left on device"):
        certificates.create(tmp_path / "credentials")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def copy(directory: Path, tmp_path: Path) -> Path:
    """A copy of the run's credentials, which the test may damage."""
    return shutil.copytree(directory, tmp_path / "copy")


def test_all_missing_files_are_named_with_the_flag_that_helps(copy: Path) -> None:
    (copy / "actor.key").unlink()
    (copy / "ca.pem").unlink()
    with pytest.raises(ConfigError, match=f"{copy}: has no ca.pem, actor.key; .* --credentials"):
        credentials.channel_credentials(copy)


def test_a_key_that_others_can_read_is_refused(copy: Path) -> None:
    (copy / "actor.key").chmod(0o640)
    with pytest.raises(ConfigError, match=f"chmod 600 {copy / 'actor.key'}"):
        credentials.channel_credentials(copy)


def test_a_file_that_is_not_a_certificate_is_named(copy: Path) -> None:
    (copy / "ca.pem").write_text("half a file")
    with pytest.raises(ConfigError, match="ca.pem: not a certificate"):
        credentials.server_credentials(copy)
