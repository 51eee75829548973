"""Actors that fetch a network to run without TensorFlow, over real gRPC."""

from __future__ import annotations

import queue
import threading
from concurrent.futures import Future

import grpc
import numpy as np
import pytest

from impala_tf.transport import ClientClosed, NoNetwork, RunOver, TransportError, impala_pb2
from tests.helpers.wire import (
    PATIENCE_S,
    Connect,
    FakeLearner,
    InThread,
    Serve,
    StubOf,
    make_parameters,
)


def named_after_its_size(num_environments: int) -> Future[bytes]:
    """Answers at once."""
    found: Future[bytes] = Future()
    found.set_result(b"network for %d" % num_environments)
    return found


def test_an_actor_gets_the_network_for_its_environments(serve: Serve, connect: Connect) -> None:
    actor = connect(serve(FakeLearner(), networks=named_after_its_size).port)
    actor.handshake()
    assert actor.fetch_network(3) == b"network for 3"


def test_an_actor_gets_only_the_parameters_that_it_uses(serve: Serve, connect: Connect) -> None:
    """Those of a separate baseline would double what fifty actors fetch again and again."""
    learner = FakeLearner()
    one = serve(learner)
    learner.parameters.publish(3, make_parameters(0.5))
    actor, other = connect(one.port), connect(one.port, "actor-1")
    found = actor.fetch_parameters(-1, used=[1])
    assert found is not None
    matrix, vector = found[1]
    assert matrix is None
    np.testing.assert_array_equal(vector, make_parameters(0.5)[1])
    everything = other.fetch_parameters(-1)
    assert everything is not None
    for got, wanted in zip(everything[1], make_parameters(0.5), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_other_calls_are_answered_while_a_network_is_converted(
    serve: Serve, connect: Connect
) -> None:
    """Converting takes a second or more, during which the learner serves everybody else."""
    slow: Future[bytes] = Future()
    one = serve(FakeLearner(), networks=lambda *_: slow)
    actor, other = connect(one.port), connect(one.port, "actor-1")
    actor.handshake()
    waiting = InThread(lambda: actor.fetch_network(3))
    other.handshake()
    assert waiting.blocked
    slow.set_result(b"network")
    assert waiting.wait() == b"network"


def test_an_actor_that_is_lost_meanwhile_takes_the_network_from_nobody(
    serve: Serve, connect: Connect
) -> None:
    """A network is converted once for all actors that have as many environments."""
    asked: queue.Queue[int] = queue.Queue()
    converted: Future[bytes] = Future()

    def network(num_environments: int) -> Future[bytes]:
        asked.put(num_environments)
        return converted

    one = serve(FakeLearner(), networks=network)
    lost, other = connect(one.port), connect(one.port, "actor-1")
    lost.handshake()
    fetching = InThread(lambda: lost.fetch_network(3))
    asked.get(timeout=PATIENCE_S)
    lost.close()
    assert isinstance(fetching.wait(), ClientClosed)
    threading.Event().wait(0.5)  # the learner learns that the call was cancelled
    other.handshake()
    waiting = InThread(lambda: other.fetch_network(3))
    asked.get(timeout=PATIENCE_S)
    assert not converted.cancelled()
    converted.set_result(b"network")
    assert waiting.wait() == b"network"


def test_the_reason_why_there_is_none_is_told(serve: Serve, connect: Connect) -> None:
    """The actor then computes with TensorFlow, and logs the reason."""

    def fails(*_: object) -> Future[bytes]:
        found: Future[bytes] = Future()
        found.set_exception(NoNetwork("LiteRT lacks an operation"))
        return found

    actor = connect(serve(FakeLearner(), networks=fails).port)
    actor.handshake()
    with pytest.raises(NoNetwork, match="LiteRT lacks an operation"):
        actor.fetch_network(3)


def test_a_learner_that_converts_none_says_so(serve: Serve, connect: Connect) -> None:
    actor = connect(serve(FakeLearner()).port)
    actor.handshake()
    with pytest.raises(NoNetwork, match="converts none"):
        actor.fetch_network(3)


@pytest.mark.parametrize("num_environments", [0, 9, 2**31 - 1])
def test_a_network_for_other_environments_is_refused(
    serve: Serve, connect: Connect, num_environments: int
) -> None:
    """Each size is converted and kept: a broken actor could fill the learner's memory."""
    asked: list[int] = []

    def network(count: int) -> Future[bytes]:
        asked.append(count)
        return named_after_its_size(count)

    actor = connect(serve(FakeLearner(), networks=network).port)
    actor.handshake()
    with pytest.raises(TransportError, match="num_environments: expected 1 to 8"):
        actor.fetch_network(num_environments)
    assert not asked


def test_an_actor_without_a_handshake_gets_none(serve: Serve, stub_of: StubOf) -> None:
    one = serve(FakeLearner(), networks=named_after_its_size)
    with pytest.raises(grpc.RpcError) as caught:
        stub_of(one).GetNetwork(impala_pb2.GetNetworkRequest(actor_id="x", num_environments=1))
    assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION


def test_an_actor_is_told_that_the_run_is_over(serve: Serve, connect: Connect) -> None:
    one = serve(FakeLearner(), networks=named_after_its_size)
    actor = connect(one.port)
    actor.handshake()
    one.finish()
    with pytest.raises(RunOver):
        actor.fetch_network(3)
    assert one.service.actors()[0].told_run_over


def test_an_actor_shakes_hands_with_a_learner_that_was_restarted(
    serve: Serve, connect: Connect
) -> None:
    """A learner may be restarted just as its actors start."""
    one = serve(FakeLearner(), networks=named_after_its_size)
    actor = connect(one.port)
    actor.handshake()
    port = one.port
    one.stop(0)
    waiting = InThread(lambda: actor.fetch_network(3))
    threading.Event().wait(0.3)
    serve(FakeLearner(), port, networks=named_after_its_size)
    assert waiting.wait() == b"network for 3"
