"""What actors fetch to act: parameters, a network, or the actions, over real gRPC."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from concurrent.futures import Future

import pytest

from impala_tf.transport import ClientClosed, DecodeError, TransportError
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


def test_a_question_gets_its_answer(learner: FakeLearner) -> None:
    """Images are larger than other messages may be."""
    actor = learner.connect(learner.serve(infer=echo).port)
    image = bytes(range(256)) * 8_000
    version, tensors = actor.infer(1, [image, b"b"], -1)
    assert (version, list(tensors)) == (7, [b"\1", b"b", image])


def test_a_synchronous_actor_is_answered_once_there_are_other_parameters(
    learner: FakeLearner,
) -> None:
    """A lower version, of a learner that was restarted from a checkpoint, counts as well."""
    actor = learner.connect(learner.serve(infer=echo).port)
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
    with pytest.raises(TransportError, match="started with --inference=actor"):
        learner.connect(without).infer(1, [], -1)
    with pytest.raises(TransportError, match="reward: expected 4 bytes"):
        learner.connect(failing).infer(1, [], -1)


@pytest.mark.parametrize("num_environments", [0, 9, 2**31 - 1])
def test_what_is_asked_for_other_environments_is_refused(
    learner: FakeLearner, num_environments: int
) -> None:
    """A network is converted for each size: a broken actor could fill the learner's memory."""
    asked: list[int] = []
    port = learner.serve(infer=echo, networks=asked.append).port
    with pytest.raises(TransportError, match="num_environments: expected 1 to 8"):
        learner.connect(port).infer(num_environments, [], -1)
    with pytest.raises(TransportError, match="num_environments: expected 1 to 8"):
        learner.connect(port).fetch_network(num_environments)
    assert not asked


def test_the_question_of_a_lost_actor_is_cancelled(learner: FakeLearner) -> None:
    """So that the learner leaves it out of its next batch."""
    asked: queue.Queue[Future[tuple[int, list[bytes]]]] = queue.Queue()

    def never(*_: object) -> Future[tuple[int, list[bytes]]]:
        question: Future[tuple[int, list[bytes]]] = Future()
        asked.put(question)
        return question

    actor = learner.connect(learner.serve(infer=never).port)
    lost = InThread(lambda: actor.infer(1, [], -1))
    question = asked.get(timeout=PATIENCE_S)
    actor.close()
    wait_until(question.cancelled, PATIENCE_S)
    assert isinstance(lost.wait(), ClientClosed)


def test_an_actor_that_is_lost_meanwhile_takes_the_network_from_nobody(
    learner: FakeLearner,
) -> None:
    """A network is converted once for all actors that have as many environments."""
    asked: queue.Queue[int] = queue.Queue()
    converted: Future[bytes] = Future()

    def network(num_environments: int) -> Future[bytes]:
        asked.put(num_environments)
        return converted

    one = learner.serve(networks=network)
    lost, other = learner.connect(one.port), learner.connect(one.port, "actor-1")
    fetching = InThread(lambda: lost.fetch_network(3))
    asked.get(timeout=PATIENCE_S)
    lost.close()
    assert isinstance(fetching.wait(), ClientClosed)
    wait_until(lambda: one.service.num_acting() == 0)
    waiting = InThread(lambda: other.fetch_network(3))
    asked.get(timeout=PATIENCE_S)
    assert not converted.cancelled()
    converted.set_result(b"network")
    assert waiting.wait() == b"network"
