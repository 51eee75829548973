"""Who holds a certificate may still send anything: the learner refuses it and continues."""

from __future__ import annotations

import contextlib
import itertools
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from impala_tf.machine.process_memory import peak_mib
from impala_tf.transport import credentials, impala_pb2, server
from tests.helpers.wire import (
    CODEC,
    FakeLearner,
    Peer,
    hello,
    make_parameters,
    make_unroll,
    push,
)

many_inputs = settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
MIB = 2**20
Open = Callable[..., Peer]


@pytest.fixture
def open_peer(learner: FakeLearner, directory: Path) -> Iterator[Open]:
    """Opens streams to one learner; one at a time, so that a property test has few."""
    one = learner.serve()
    learner.parameters.publish(0, make_parameters(0.0))
    opened: list[Peer] = []
    numbers = itertools.count()

    def open_stream(greets: bool = True, **options: Any) -> Peer:
        while opened:
            opened.pop().close()
        opened.append(Peer(one.port, credentials.channel_credentials(directory), **options))
        if greets:
            name = f"raw-{next(numbers)}"  # its pushes are no duplicates
            assert opened[0].ask(hello=hello(actor_id=name)).run_id == "run-1"
        return opened[0]

    yield open_stream
    opened[0].close()


@many_inputs
@given(greets=st.booleans(), data=st.binary(max_size=300))
def test_random_bytes_are_refused(
    open_peer: Open, learner: FakeLearner, greets: bool, data: bytes
) -> None:
    peer = open_peer(greets)
    peer.send(data)  # it may be a message, such as a pong, which is not answered
    status = peer.status(push=push(0, tensors=[]))
    assert status in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.OK)
    assert learner.versions() == []


_numbers = st.lists(st.one_of(st.integers(-(2**31), 2**31 - 1), st.just(0)), max_size=30)
_floats = st.lists(st.floats(width=32), max_size=30)
_pushes = st.fixed_dictionaries(
    {},
    optional={
        "sequence": st.integers(0, 2**62),
        "num_environments": st.integers(-(2**31), 2**31 - 1),
        "tensors": st.lists(st.binary(max_size=30), max_size=12),
        "episode_returns": _floats,
        "episode_lengths": _numbers,
        "episode_levels": _numbers,
        "episode_infos": _floats,
        "agent_steps_per_s": st.floats(width=32),
    },
)


@many_inputs
@given(content=_pushes)
def test_pushes_of_any_content_are_taken_or_refused(
    open_peer: Open, learner: FakeLearner, content: dict[str, Any]
) -> None:
    status = open_peer().status(push={**push(0), **content})
    assert status in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.OK)
    for _, _, episodes, _ in learner.reports.queue:
        assert all(abs(e.episode_return) < 1e39 and e.level == 0 for e in episodes)
        assert all(e.info == () for e in episodes)


@pytest.mark.parametrize("in_parts", [False, True])
def test_an_oversized_message_is_refused_before_it_is_received(
    open_peer: Open, in_parts: bool
) -> None:
    """The limit is that of the run, of a few MiB, not the one of gRPC for all runs."""
    part = impala_pb2.FromActor(part={"data": bytes(MIB)}).SerializeToString()
    peer = open_peer()
    Path("/proc/self/clear_refs").write_text("5")  # the peak of earlier tests, see proc(5)
    before = peak_mib() or 0.0
    if in_parts:
        for _ in range(200):
            peer.send(part)
        assert peer.status() is grpc.StatusCode.INVALID_ARGUMENT
        assert (peak_mib() or 0.0) - before < 50
    else:
        data = bytes(200 * MIB)
        own = (peak_mib() or 0.0) - before
        assert peer.status(data) is grpc.StatusCode.RESOURCE_EXHAUSTED
        # The sender is this process too: it has the message once, and once more while it is sent.
        assert (peak_mib() or 0.0) - before < own + 250
    assert not open_peer().ask(push=push(0)).duplicate


def test_a_second_request_of_a_kind_before_the_first_is_answered_is_refused(
    open_peer: Open, learner: FakeLearner
) -> None:
    """They would fill the learner's memory."""
    learner.has_room.clear()
    peer = open_peer()
    peer.send(push=push(0))
    assert peer.status(push=push(1)) is grpc.StatusCode.INVALID_ARGUMENT
    learner.has_room.set()
    assert learner.reported(1) == [0]


def test_compressed_messages_are_refused(open_peer: Open) -> None:
    """A hundred megabytes of zeros are a tenth of one, compressed."""
    peer = open_peer(greets=False, compression=grpc.Compression.Gzip)
    assert peer.status(hello=hello()) is grpc.StatusCode.UNIMPLEMENTED
    assert not open_peer().ask(push=push(0)).duplicate


def test_more_environments_than_were_agreed_on_are_refused(
    open_peer: Open, learner: FakeLearner
) -> None:
    n, tensors = CODEC.encode(make_unroll(0, n=9))
    many = push(0, num_environments=n, tensors=tensors)
    assert open_peer().status(push=many) is grpc.StatusCode.INVALID_ARGUMENT
    assert learner.versions() == []


@pytest.mark.parametrize("count", [0, -1, 4097])
def test_a_handshake_for_too_many_environments_is_refused(open_peer: Open, count: int) -> None:
    refusal = open_peer(greets=False).ask(hello=hello(num_environments=count))
    assert f"the actor has {count}" in refusal and "4096" in refusal


@pytest.mark.parametrize("count", [1, 4096])
def test_a_handshake_for_the_fewest_or_most_environments_is_welcome(
    open_peer: Open, count: int
) -> None:
    assert open_peer(greets=False).ask(hello=hello(num_environments=count)).run_id == "run-1"


@pytest.mark.parametrize(
    "name", ["", "[/red]", "a b", "x" * 200_000, "\x1b[2J", "a\nb", "caf\u00e9"]
)
def test_names_that_would_disturb_a_terminal_or_a_log_are_refused(
    learner: FakeLearner, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    one = learner.serve()
    assert learner.peer(one).ask(hello=hello(actor_id=name)).startswith("actor_id: ")
    assert one.service.sessions.shown() == []
    assert len(caplog.text) < 1000
    assert "\x1b" not in caplog.text


def test_a_list_of_episodes_without_end_is_refused(open_peer: Open) -> None:
    lists: dict[str, Any] = {f"episode_{name}": [1] * 50_000 for name in ("lengths", "levels")}
    peer = open_peer()
    with pytest.raises(grpc.RpcError, match="10 at most") as refused:
        peer.ask(push=push(0, episode_returns=[1.0] * 50_000, **lists))
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT


# --- slow and silent peers ---


def test_half_sent_messages_keep_nobody_from_being_answered(learner: FakeLearner) -> None:
    one = learner.serve()
    learner.parameters.publish(0, make_parameters(0.0))
    for _ in range(40):
        learner.peer(one).send(part={"data": b"the rest never comes"})
    actor = learner.connect(one.port)
    assert actor.fetch_parameters(-1) is not None
    for version in range(20):
        actor.push(make_unroll(version))
    assert learner.reported(20) == list(range(20))


def test_idle_connections_without_a_certificate_are_closed(
    learner: FakeLearner, monkeypatch: pytest.MonkeyPatch
) -> None:
    handshake = "grpc.server_handshake_timeout_ms"
    assert dict(server.SERVER_OPTIONS)[handshake] <= 10_000
    others = [option for option in server.SERVER_OPTIONS if option[0] != handshake]
    monkeypatch.setattr(server, "SERVER_OPTIONS", [*others, (handshake, 1000)])
    one = learner.serve()
    learner.parameters.publish(0, make_parameters(0.0))
    idle = [socket.create_connection(("127.0.0.1", one.port), 10) for _ in range(200)]
    assert learner.connect(one.port).fetch_parameters(-1) is not None
    for each in idle:
        with each, contextlib.suppress(ConnectionError):
            while each.recv(1000):  # a TimeoutError if it is not closed
                pass
