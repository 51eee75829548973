"""Actors that let their learner choose actions, over real gRPC."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from concurrent.futures import Future

import pytest

from impala_tf.transport import (
    ClientClosed,
    DecodeError,
    QueueClosed,
    RunOver,
    TransportError,
)
from tests.helpers.waiting import wait_until
from tests.helpers.wire import (
    PATIENCE_S,
    Connect,
    FakeLearner,
    InThread,
    Serve,
    make_parameters,
)


def echo(num_environments: int, tensors: Sequence[bytes]) -> Future[tuple[int, list[bytes]]]:
    """Answers with what it was asked, backwards, as version 7."""
    answer: Future[tuple[int, list[bytes]]] = Future()
    answer.set_result((7, [num_environments.to_bytes(1, "big"), *reversed(tensors)]))
    return answer


def test_a_question_gets_its_answer(serve: Serve, connect: Connect, learner: FakeLearner) -> None:
    """Images are larger than other messages may be."""
    actor = connect(serve(learner, infer=echo).port)
    actor.handshake()
    image = bytes(range(256)) * 8_000
    version, tensors = actor.infer(1, [image, b"b"], -1)
    assert (version, list(tensors)) == (7, [b"\1", b"b", image])


def test_a_synchronous_actor_is_answered_once_there_are_other_parameters(
    serve: Serve, connect: Connect, learner: FakeLearner
) -> None:
    """A lower version, of a learner that was restarted from a checkpoint, counts as well."""
    actor = connect(serve(learner, infer=echo).port)
    actor.handshake()
    learner.parameters.publish(5, make_parameters(5.0))
    assert actor.infer(1, [], -1)[0] == 7
    waiting = InThread(lambda: actor.infer(1, [], 5))
    threading.Event().wait(0.5)
    assert waiting.blocked
    learner.parameters.publish(4, make_parameters(4.0))
    assert waiting.wait()[0] == 7


def test_an_actor_that_waits_is_told_that_the_run_is_over(
    serve: Serve, connect: Connect, learner: FakeLearner
) -> None:
    one = serve(learner, infer=echo)
    actor = connect(one.port)
    actor.handshake()
    learner.parameters.publish(5, make_parameters(5.0))
    waiting = InThread(lambda: actor.infer(1, [], 5))
    threading.Event().wait(0.3)
    one.finish()
    assert isinstance(waiting.wait(), RunOver)
    assert one.service.actors()[0].told_run_over


def test_what_cannot_be_answered_is_refused(
    serve: Serve, connect: Connect, learner: FakeLearner
) -> None:
    def fail(*_: object) -> Future[tuple[int, list[bytes]]]:
        answer: Future[tuple[int, list[bytes]]] = Future()
        answer.set_exception(DecodeError("reward: expected 4 bytes"))
        return answer

    without, failing = connect(serve(learner).port), connect(serve(learner, infer=fail).port)
    for actor, num_environments, problem in (
        (without, 1, "started with --inference=actor"),
        (failing, 99, "num_environments: expected 1 to"),
        (failing, 1, "reward: expected 4 bytes"),
    ):
        actor.handshake()
        with pytest.raises(TransportError, match=problem):
            actor.infer(num_environments, [], -1)


def test_an_actor_asks_again_when_its_learner_is_back(
    serve: Serve, connect: Connect, learner: FakeLearner
) -> None:
    asked: list[int] = []

    def stopping(num: int, tensors: Sequence[bytes]) -> Future[tuple[int, list[bytes]]]:
        asked.append(num)
        if len(asked) > 1:
            return echo(num, tensors)
        answer: Future[tuple[int, list[bytes]]] = Future()
        answer.set_exception(QueueClosed("the learner is stopping"))
        return answer

    actor = connect(serve(learner, infer=stopping).port)
    actor.handshake()
    assert actor.infer(1, [], -1)[0] == 7
    assert asked == [1, 1]


def test_the_question_of_a_lost_actor_is_cancelled(
    serve: Serve, connect: Connect, learner: FakeLearner
) -> None:
    """So that the learner leaves it out of its next batch."""
    asked: queue.Queue[Future[tuple[int, list[bytes]]]] = queue.Queue()

    def never(*_: object) -> Future[tuple[int, list[bytes]]]:
        question: Future[tuple[int, list[bytes]]] = Future()
        asked.put(question)
        return question

    actor = connect(serve(learner, infer=never).port)
    actor.handshake()
    lost = InThread(lambda: actor.infer(1, [], -1))
    question = asked.get(timeout=PATIENCE_S)
    actor.close()
    wait_until(question.cancelled, PATIENCE_S)
    assert isinstance(lost.wait(), ClientClosed)
