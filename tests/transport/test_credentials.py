"""A run's certificates: who can connect, who cannot, and what the files reveal."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from impala_tf.config import ConfigError
from impala_tf.machine import certificates
from impala_tf.transport import (
    LearnerServer,
    LearnerService,
    ParameterStore,
    Pushes,
    RunTerms,
    credentials,
    impala_pb2,
)
from impala_tf.transport.wire import SERVICE, stub
from impala_tf.types import AgentOutput, ArraySpec, EnvOutput, Unroll

SCALAR = ArraySpec((), "float32")
RUN = RunTerms(
    run_id="run",
    config_digest="digest",
    sent_specs=Unroll(SCALAR, (), EnvOutput(*[SCALAR] * 7), AgentOutput(SCALAR, SCALAR), SCALAR),
    parameter_specs=[],
    most_episodes=3,
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The credentials of a run."""
    path = tmp_path_factory.mktemp("run") / "credentials"
    certificates.create(path)
    return path


@pytest.fixture(scope="module")
def other_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The credentials of another run."""
    path = tmp_path_factory.mktemp("other") / "credentials"
    certificates.create(path)
    return path


@pytest.fixture(scope="module")
def port(directory: Path) -> Iterator[int]:
    """The port of a learner that serves with `directory`."""
    server = LearnerServer(
        "127.0.0.1:0",
        directory,
        LearnerService(Pushes(RUN, lambda sent, report: None), ParameterStore()),
    )
    server.start()
    yield server.port
    server.stop(0)


def shake_hands(
    port: int, channel_credentials: grpc.ChannelCredentials | None, name: str = "learner.impala"
) -> impala_pb2.HandshakeReply:
    """Calls a server that has a certificate for `name`."""
    address = f"127.0.0.1:{port}"
    options = [("grpc.ssl_target_name_override", name)]
    with (
        grpc.secure_channel(address, channel_credentials, options)
        if channel_credentials
        else grpc.insecure_channel(address)
    ) as channel:
        return stub(channel).Handshake(impala_pb2.HandshakeRequest(), timeout=60)


def assert_refused(port: int, channel_credentials: grpc.ChannelCredentials | None) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        shake_hands(port, channel_credentials)
    assert refused.value.code() == grpc.StatusCode.UNAVAILABLE


def test_an_actor_of_the_run_is_answered(port: int, directory: Path) -> None:
    reply = shake_hands(port, credentials.channel_credentials(directory))
    assert reply.outcome == impala_pb2.REFUSED  # by the protocol: the certificate was accepted


def test_an_actor_needs_only_the_files_for_actors(
    port: int, directory: Path, tmp_path: Path
) -> None:
    for name in certificates.ACTOR_FILES:
        shutil.copy(directory / name, tmp_path / name)
    assert shake_hands(port, credentials.channel_credentials(tmp_path)).message
    with pytest.raises(ConfigError, match="learner.key"):
        credentials.server_credentials(tmp_path)


def test_a_client_without_certificate_is_refused(port: int, directory: Path) -> None:
    authority = (directory / "ca.pem").read_bytes()
    assert_refused(port, grpc.ssl_channel_credentials(authority))


def test_a_client_without_tls_is_refused(port: int) -> None:
    assert_refused(port, None)


def test_an_actor_does_not_talk_to_another_runs_learner(port: int, other_directory: Path) -> None:
    assert_refused(port, credentials.channel_credentials(other_directory))


def test_a_learner_does_not_talk_to_another_runs_actor(
    port: int, directory: Path, other_directory: Path
) -> None:
    """The client trusts this run's authority, so it is the learner that refuses."""
    key, certificate = (other_directory / name for name in ("actor.key", "actor.pem"))
    assert_refused(
        port,
        grpc.ssl_channel_credentials(
            (directory / "ca.pem").read_bytes(), key.read_bytes(), certificate.read_bytes()
        ),
    )


def test_a_learners_certificate_cannot_be_used_as_an_actors(port: int, directory: Path) -> None:
    files = [(directory / name).read_bytes() for name in certificates.LEARNER_FILES]
    authority, certificate, key = files
    assert_refused(port, grpc.ssl_channel_credentials(authority, key, certificate))


def admits(data: bytes, context: grpc.ServicerContext) -> bytes:
    """The handshake of a learner that accepts every actor."""
    return impala_pb2.HandshakeReply(outcome=impala_pb2.OK).SerializeToString()


@pytest.mark.parametrize(("role", "accepted"), [("learner", True), ("actor", False)])
def test_an_actors_certificate_cannot_be_used_by_a_server(
    directory: Path, role: str, accepted: bool
) -> None:
    """A stolen actor key must not make its thief a learner for the other actors.

    The client asks for the name in the certificate, so that only its purpose is wrong.
    """
    authority, key, certificate = (
        (directory / name).read_bytes() for name in ("ca.pem", f"{role}.key", f"{role}.pem")
    )
    server = grpc.server(futures.ThreadPoolExecutor(2))
    handlers = {"Handshake": grpc.unary_unary_rpc_method_handler(admits)}
    service = grpc.method_handlers_generic_handler(SERVICE, handlers)
    server.add_generic_rpc_handlers((service,))
    port = server.add_secure_port(
        "127.0.0.1:0", grpc.ssl_server_credentials([(key, certificate)], authority, True)
    )
    server.start()
    try:
        client = credentials.channel_credentials(directory)
        if accepted:
            assert shake_hands(port, client, f"{role}.impala").outcome == impala_pb2.OK
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
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == first


def test_processes_that_create_credentials_together_get_one_set(tmp_path: Path) -> None:
    directory = tmp_path / "credentials"
    with futures.ThreadPoolExecutor(8) as threads:
        list(threads.map(certificates.ensure, [directory] * 8))
    credentials.server_credentials(directory)
    assert [path.name for path in tmp_path.iterdir()] == ["credentials"]


def test_existing_credentials_are_never_overwritten(directory: Path) -> None:
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    with pytest.raises(ConfigError, match="cannot hold a run's certificates"):
        certificates.create(directory)
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == before


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
    with pytest.raises(ConfigError) as raised:
        credentials.channel_credentials(copy)
    (line,) = raised.value.problems
    assert line.startswith(f"{copy}: has no ca.pem, actor.key; start the learner first")
    assert "--credentials" in line


def test_a_key_that_others_can_read_is_refused(copy: Path) -> None:
    (copy / "actor.key").chmod(0o640)
    with pytest.raises(ConfigError, match=f"chmod 600 {copy / 'actor.key'}"):
        credentials.channel_credentials(copy)
    (copy / "actor.key").chmod(0o600)
    credentials.channel_credentials(copy)


def test_a_file_that_is_not_a_certificate_is_named(copy: Path) -> None:
    (copy / "ca.pem").write_text("half a file")
    with pytest.raises(ConfigError, match="ca.pem: not a certificate"):
        credentials.server_credentials(copy)
