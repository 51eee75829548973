"""A run's certificates: who can connect, who cannot, and what the files reveal."""

from __future__ import annotations

import shutil
import stat
from collections.abc import Callable
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from impala_tf.config import ConfigError
from impala_tf.machine import certificates
from impala_tf.transport import credentials
from tests.helpers.wire import FakeLearner, Peer


@pytest.fixture
def copy(directory: Path, tmp_path: Path) -> Path:
    """A copy of the run's credentials, which the test may damage."""
    return shutil.copytree(directory, tmp_path / "copy")


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
    learner: FakeLearner, directory: Path, tmp_path: Path, peer: str
) -> None:
    certificates.create(tmp_path / "other")
    port = learner.serve().port
    with pytest.raises(grpc.RpcError) as refused:
        shake_hands(port, PEERS[peer](directory, tmp_path / "other"))
    assert refused.value.code() == grpc.StatusCode.UNAVAILABLE


def test_an_actors_certificate_cannot_be_used_by_a_server(
    learner: FakeLearner, directory: Path, copy: Path
) -> None:
    """A stolen actor key must not make its thief a learner for the other actors."""
    for suffix in ("pem", "key"):
        shutil.copy(directory / f"actor.{suffix}", copy / f"learner.{suffix}")
    port = learner.serve(folder=copy).port
    client = credentials.channel_credentials(directory)
    with pytest.raises(grpc.RpcError) as refused:
        # The client asks for the name in the certificate, so that only its purpose is wrong.
        shake_hands(port, client, certificates.ACTOR_NAME)
    assert refused.value.code() == grpc.StatusCode.UNAVAILABLE


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


def test_processes_that_create_credentials_together_get_one_set(tmp_path: Path) -> None:
    directory = tmp_path / "credentials"
    with futures.ThreadPoolExecutor(8) as threads:
        list(threads.map(certificates.ensure, [directory] * 8))
    credentials.server_credentials(directory)
    assert [path.name for path in tmp_path.iterdir()] == ["credentials"]


SPOILED: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda copy: (copy / "ca.pem").unlink(), "has no ca.pem; .* --credentials"),
    "readable by others": (
        lambda copy: (copy / "actor.key").chmod(0o640),
        "chmod 600 .*/actor.key",
    ),
}


@pytest.mark.parametrize("damage", SPOILED)
def test_files_that_cannot_be_used_are_named_with_what_helps(copy: Path, damage: str) -> None:
    spoil, problem = SPOILED[damage]
    spoil(copy)
    with pytest.raises(ConfigError, match=problem):
        credentials.channel_credentials(copy)
