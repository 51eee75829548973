"""Who holds a certificate may still send anything: the learner refuses it and continues."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from impala_tf.machine import certificates
from impala_tf.machine.process_memory import peak_mib
from impala_tf.transport import LearnerServer, credentials, impala_pb2, server
from tests.helpers.wire import (
    CODEC,
    Connect,
    FakeLearner,
    Serve,
    StubOf,
    handshake_request,
    make_parameters,
    make_unroll,
    push_request,
)

many_inputs = settings(
    max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
METHODS = ("Handshake", "Attend", "GetParameters", "PushUnroll")
MIB = 2**20


@pytest.fixture
def channel(serve: Serve, learner: FakeLearner, directory: Path) -> Iterator[grpc.Channel]:
    one = serve(learner)
    learner.parameters.publish(0, make_parameters(0.0))
    options = [("grpc.ssl_target_name_override", certificates.LEARNER_NAME),
               ("grpc.max_send_message_length", -1)]  # fmt: skip
    with_certificate = credentials.channel_credentials(directory)
    with grpc.secure_channel(f"127.0.0.1:{one.port}", with_certificate, options) as opened:
        yield opened


def call(channel: grpc.Channel, method: str, data: bytes, **options: Any) -> grpc.StatusCode:
    """Sends bytes; returns the status."""
    try:
        channel.unary_unary(f"/impala.Learner/{method}", bytes, bytes)(data, timeout=60, **options)
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK


def good_push(sequence: int) -> bytes:
    return push_request(sequence).SerializeToString()


def greet(channel: grpc.Channel) -> None:
    assert call(channel, "Handshake", handshake_request().SerializeToString()) is (
        grpc.StatusCode.OK
    )


_REFUSED = {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION,
            grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNIMPLEMENTED}  # fmt: skip


@many_inputs
@given(method=st.sampled_from(METHODS), data=st.binary(max_size=300))
def test_random_bytes_are_refused(
    channel: grpc.Channel, learner: FakeLearner, method: str, data: bytes
) -> None:
    status = call(channel, method, data)
    assert status in _REFUSED | {grpc.StatusCode.OK}  # OK: a handshake that was refused
    assert learner.versions() == []


_numbers = st.one_of(st.integers(-(2**31), 2**31 - 1), st.sampled_from([0, -1, 2**31 - 1]))


@many_inputs
@given(
    sequence=st.integers(0, 2**62),
    num_environments=_numbers,
    returns=st.lists(st.floats(width=32), max_size=30),
    lengths=st.lists(_numbers, max_size=30),
    levels=st.lists(_numbers, max_size=30),
    infos=st.lists(st.floats(width=32), max_size=30),
    keep=st.integers(0, 12),
    rate=st.floats(width=32),
)
def test_pushes_of_any_content_are_taken_or_refused(
    channel: grpc.Channel, learner: FakeLearner, sequence: int, num_environments: int,
    returns: list[float], lengths: list[int], levels: list[int], infos: list[float], keep: int,
    rate: float,
) -> None:  # fmt: skip
    greet(channel)
    request = push_request(
        0, num_environments=num_environments, episode_returns=returns,
        episode_lengths=lengths, episode_levels=levels, agent_steps_per_s=rate,
        episode_infos=infos,
    )  # fmt: skip
    request.sequence = sequence
    del request.tensors[keep:]
    status = call(channel, "PushUnroll", request.SerializeToString())
    assert status in _REFUSED | {grpc.StatusCode.OK}
    for report in list(learner.reports.queue):
        assert report.num_unrolls == 2
        assert all(abs(e.episode_return) < 1e39 and e.level == 0 for e in report.episodes)
        assert all(e.info == () for e in report.episodes)


def test_an_oversized_message_is_refused_before_it_is_received(channel: grpc.Channel) -> None:
    """The limit is that of the run, of a few KiB, not the one of gRPC for all runs."""
    greet(channel)
    Path("/proc/self/clear_refs").write_text("5")  # the peak of earlier tests, see proc(5)
    before = peak_mib() or 0.0
    data = bytes(200 * MIB)
    own = (peak_mib() or 0.0) - before
    assert call(channel, "PushUnroll", data) is grpc.StatusCode.RESOURCE_EXHAUSTED
    # The sender is this process too: it has the message once, and once more while it is sent.
    assert (peak_mib() or 0.0) - before < own + 250
    assert call(channel, "PushUnroll", good_push(0)) is grpc.StatusCode.OK


def test_compressed_messages_are_refused(channel: grpc.Channel, learner: FakeLearner) -> None:
    """A hundred megabytes of zeros are a tenth of one, compressed."""
    greet(channel)
    status = call(channel, "PushUnroll", good_push(0), compression=grpc.Compression.Gzip)
    assert status is grpc.StatusCode.UNIMPLEMENTED
    assert call(channel, "PushUnroll", good_push(0)) is grpc.StatusCode.OK


def test_more_environments_than_were_agreed_on_are_refused(
    channel: grpc.Channel, learner: FakeLearner
) -> None:
    greet(channel)
    n, tensors = CODEC.encode(make_unroll(0, n=9))
    many = push_request(0, num_environments=n, tensors=tensors).SerializeToString()
    assert call(channel, "PushUnroll", many) is grpc.StatusCode.INVALID_ARGUMENT
    assert learner.versions() == []


@pytest.mark.parametrize("count", [0, -1, 4097])
def test_a_handshake_for_too_many_environments_is_refused(
    serve: Serve, stub_of: StubOf, learner: FakeLearner, count: int
) -> None:
    reply = stub_of(serve(learner)).Handshake(handshake_request(num_environments=count))
    assert reply.outcome == impala_pb2.REFUSED
    assert f"the actor has {count}" in reply.message and "4096" in reply.message


@pytest.mark.parametrize(
    "name", ["", "[/red]", "a b", "x" * 200_000, "\x1b[2J", "a\nb", "caf\u00e9"]
)
def test_names_that_would_disturb_a_terminal_or_a_log_are_refused(
    serve: Serve, stub_of: StubOf, learner: FakeLearner, name: str,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    one = serve(learner)
    reply = stub_of(one).Handshake(handshake_request(actor_id=name))
    assert reply.outcome == impala_pb2.REFUSED
    assert reply.message.startswith("actor_id: ")
    assert one.service.actors() == []
    assert len(caplog.text) < 1000
    assert "\x1b" not in caplog.text


def test_a_name_of_a_megabyte_is_not_even_parsed(
    serve: Serve, stub_of: StubOf, learner: FakeLearner
) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        stub_of(serve(learner)).Handshake(handshake_request(actor_id="x" * MIB))
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_a_list_of_episodes_without_end_is_refused(
    serve: Serve, stub_of: StubOf, learner: FakeLearner
) -> None:
    stub = stub_of(serve(learner))
    stub.Handshake(handshake_request())
    lists: dict[str, Any] = {f"episode_{name}": [1] * 50_000 for name in ("lengths", "levels")}
    with pytest.raises(grpc.RpcError) as refused:
        stub.PushUnroll(push_request(0, episode_returns=[1.0] * 50_000, **lists))
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "10 at most" in str(refused.value.details())


def test_a_refusal_is_logged_now_and_then_and_not_without_end(
    serve: Serve, stub_of: StubOf, learner: FakeLearner, caplog: pytest.LogCaptureFixture
) -> None:
    stub = stub_of(serve(learner))
    for _ in range(30):
        stub.Handshake(handshake_request(config_digest="other"))
    assert caplog.text.count("refused actor raw") == 1


# --- slow and silent peers ---


def half_sent_calls(one: LearnerServer, directory: Path, count: int) -> list[ssl.SSLSocket]:
    """Opens HTTP/2 connections whose call announces a message and never sends it."""
    context = ssl.create_default_context(cafile=str(directory / "ca.pem"))
    context.load_cert_chain(directory / "actor.pem", directory / "actor.key")
    context.set_alpn_protocols(["h2"])
    opened = []
    for _ in range(count):
        raw = socket.create_connection(("127.0.0.1", one.port), 10)
        tls = context.wrap_socket(raw, server_hostname=certificates.LEARNER_NAME)
        tls.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b""))
        for stream in range(1, 31, 2):
            tls.sendall(frame(1, 4, stream, HEADERS))
            tls.sendall(frame(0, 0, stream, b"\0\0\1\0\0" + b"x" * 10))  # 64 KiB announced
        opened.append(tls)
    return opened


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Source: RFC 9113, section 4.1."""
    return (
        len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload
    )


def literal(name: bytes, value: bytes) -> bytes:
    """A header without compression. Source: RFC 7541, section 6.2.2."""
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


HEADERS = b"".join(
    literal(name, value)
    for name, value in (
        (b":method", b"POST"),
        (b":scheme", b"https"),
        (b":path", b"/impala.Learner/PushUnroll"),
        (b":authority", certificates.LEARNER_NAME.encode()),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
    )
)


def test_half_sent_calls_keep_nobody_from_being_answered(
    serve: Serve, connect: Connect, learner: FakeLearner, directory: Path
) -> None:
    one = serve(learner)
    learner.parameters.publish(0, make_parameters(0.0))
    Path("/proc/self/clear_refs").write_text("5")  # the peak of earlier tests, see proc(5)
    before = peak_mib() or 0.0
    opened = half_sent_calls(one, directory, 40)  # 600 calls
    try:
        actor = connect(one.port)
        assert actor.fetch_parameters(-1) is not None
        for version in range(20):
            actor.push(make_unroll(version))
        assert learner.reported(20) == list(range(20))
        assert threading.active_count() < 100
        assert (peak_mib() or 0.0) - before < 50
    finally:
        for each in opened:
            each.close()


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_idle_connections_without_a_certificate_are_closed(
    serve: Serve, connect: Connect, learner: FakeLearner, monkeypatch: pytest.MonkeyPatch
) -> None:
    handshake = "grpc.server_handshake_timeout_ms"
    assert dict(server.SERVER_OPTIONS)[handshake] <= 10_000
    others = [option for option in server.SERVER_OPTIONS if option[0] != handshake]
    monkeypatch.setattr(server, "SERVER_OPTIONS", [*others, (handshake, 1000)])
    one = serve(learner)
    learner.parameters.publish(0, make_parameters(0.0))
    before = descriptors()
    idle = [socket.create_connection(("127.0.0.1", one.port)) for _ in range(200)]
    try:
        assert connect(one.port).fetch_parameters(-1) is not None
        for each in idle:
            each.settimeout(10)
            with contextlib.suppress(ConnectionError):
                while each.recv(1000):
                    pass
    finally:
        for each in idle:
            each.close()
    assert descriptors() < before + 50
