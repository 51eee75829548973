"""What actors fetch to act: parameters, a network, or the actions, over real gRPC."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from concurrent.futures import Future

import numpy as np
import pytest

from impala_tf.transport import ClientClosed, DecodeError, NoNetwork, TransportError
from tests.helpers.waiting import wait_until
from tests.helpers.wire import (
    PATIENCE_S,
    FakeLearner,
    InThread,
    make_parameters,
)


def echo(num_environments: int, tensors: Sequence[bytes]) -> Future[tuple[int, list[bytes]]]:
    """Answers with what it was asked, backwards, as version 7."""
    answer: Future[tuple[int, list[bytes]]] = Future()
    answer.set_result((7, [num_environments.to_bytes(1, "big"), *reversed(tensors)]))
    return answer


def named_after_its_size(num_environments: int) -> Future[bytes]:
    """Answers at once."""
    found: Future[bytes] = Future()
    found.set_result(b"network for %d" % num_environments)
    return found


def test_a_question_gets_its_answer(learner: FakeLearner) -> None:
    """Images are larger than other messages may be."""
    actor = learner.connect(learner.serve(infer=echo).port)
    actor.handshake()
    image = bytes(range(256)) * 8_000
    version, tensors = actor.infer(1, [image, b"b"], -1)
    assert (version, list(tensors)) == (7, [b"\1", b"b", image])


def test_a_synchronous_actor_is_answered_once_there_are_other_parameters(
    learner: FakeLearner,
) -> None:
    """A lower version, of a learner that was restarted from a checkpoint, counts as well."""
    actor = learner.connect(learner.serve(infer=echo).port)
    actor.handshake()
    learner.parameters.publish(5, make_parameters(5.0))
    assert actor.infer(1, [], -1)[0] == 7
    waiting = InThread(lambda: actor.infer(1, [], 5))
    threading.Event().wait(0.5)
    assert waiting.blocked
    learner.parameters.publish(4, make_parameters(4.0))
    assert waiting.wait()[0] == 7


def test_what_cannot_be_answered_is_refused(learner: FakeLearner) -> None:
    def fail(*_: object) -> Future[tuple[int, list[bytes]]]:
        answer: Future[tuple[int, list[bytes]]] = Future()
        answer.set_exception(DecodeError("reward: expected 4 bytes"))
        return answer

    without, failing = learner.serve().port, learner.serve(infer=fail).port
    for port, num_environments, problem in (
        (without, 1, "started with --inference=actor"),
        (failing, 99, "num_environments: expected 1 to"),
        (failing, 1, "reward: expected 4 bytes"),
    ):
        with pytest.raises(TransportError, match=problem):
            learner.connect(port).infer(num_environments, [], -1)


def test_the_question_of_a_lost_actor_is_cancelled(learner: FakeLearner) -> None:
    """So that the learner leaves it out of its next batch."""
    asked: queue.Queue[Future[tuple[int, list[bytes]]]] = queue.Queue()

    def never(*_: object) -> Future[tuple[int, list[bytes]]]:
        question: Future[tuple[int, list[bytes]]] = Future()
        asked.put(question)
        return question

    actor = learner.connect(learner.serve(infer=never).port)
    actor.handshake()
    lost = InThread(lambda: actor.infer(1, [], -1))
    question = asked.get(timeout=PATIENCE_S)
    actor.close()
    wait_until(question.cancelled, PATIENCE_S)
    assert isinstance(lost.wait(), ClientClosed)


def test_an_actor_gets_only_the_parameters_that_it_uses(learner: FakeLearner) -> None:
    """Those of a separate baseline would double what fifty actors fetch again and again."""
    learner = learner.another()
    one = learner.serve()
    learner.parameters.publish(3, make_parameters(0.5))
    actor, other = learner.connect(one.port), learner.connect(one.port, "actor-1")
    found = actor.fetch_parameters(-1, used=[1])
    assert found is not None
    matrix, vector = found[1]
    assert matrix is None
    np.testing.assert_array_equal(vector, make_parameters(0.5)[1])
    everything = other.fetch_parameters(-1)
    assert everything is not None
    for got, wanted in zip(everything[1], make_parameters(0.5), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_an_actor_that_is_lost_meanwhile_takes_the_network_from_nobody(
    learner: FakeLearner,
) -> None:
    """A network is converted once for all actors that have as many environments."""
    asked: queue.Queue[int] = queue.Queue()
    converted: Future[bytes] = Future()

    def network(num_environments: int) -> Future[bytes]:
        asked.put(num_environments)
        return converted

    one = learner.another().serve(networks=network)
    lost, other = learner.connect(one.port), learner.connect(one.port, "actor-1")
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


def test_the_reason_why_there_is_none_is_told(learner: FakeLearner) -> None:
    """The actor then computes with TensorFlow, and logs the reason."""

    def fails(*_: object) -> Future[bytes]:
        found: Future[bytes] = Future()
        found.set_exception(NoNetwork("LiteRT lacks an operation"))
        return found

    for networks, reason in ((fails, "LiteRT lacks an operation"), (None, "converts none")):
        actor = learner.connect(learner.another().serve(networks=networks).port)
        actor.handshake()
        with pytest.raises(NoNetwork, match=reason):
            actor.fetch_network(3)


@pytest.mark.parametrize("num_environments", [0, 9, 2**31 - 1])
def test_a_network_for_other_environments_is_refused(
    learner: FakeLearner, num_environments: int
) -> None:
    """Each size is converted and kept: a broken actor could fill the learner's memory."""
    asked: list[int] = []

    def network(count: int) -> Future[bytes]:
        asked.append(count)
        return named_after_its_size(count)

    actor = learner.connect(learner.another().serve(networks=network).port)
    actor.handshake()
    with pytest.raises(TransportError, match="num_environments: expected 1 to 8"):
        actor.fetch_network(num_environments)
    assert not asked
