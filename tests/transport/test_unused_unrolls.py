"""Unrolls that the learner does not train on: refused, or stale."""

from __future__ import annotations

import pytest

from impala_tf.transport import (
    PushReport,
    RefusedUnroll,
    StaleUnroll,
    impala_pb2,
)
from impala_tf.types import Episode, Unroll
from tests.helpers.waiting import wait_until
from tests.helpers.wire import (
    Connect,
    FakeLearner,
    Serve,
    StubOf,
    handshake_request,
    make_parameters,
    make_unroll,
    push_request,
)


def test_an_actor_whose_unroll_is_refused_is_told_why_and_continues(
    serve: Serve, connect: Connect, learner: FakeLearner, caplog: pytest.LogCaptureFixture
) -> None:
    put = learner.put
    reasons: list[str] = []

    def picky(unroll: Unroll, report: PushReport) -> None:
        if unroll.parameter_version[0] < 3:
            raise RefusedUnroll(f"made with version {unroll.parameter_version[0]}")
        put(unroll, report)

    learner.put = picky  # type: ignore[method-assign]
    refused: list[int] = []
    server = serve(learner, on_refused=refused.append)
    actor = connect(server.port, on_refused=reasons.append)
    for version in (1, 1, 2):
        actor.push(make_unroll(version=version, n=2))
    wait_until(lambda: len(refused) == 3)
    assert server.service.actors()[0].trouble == "its unrolls are refused: made with version 2"
    for version in (3, 4):
        actor.push(make_unroll(version=version, n=2))
    assert learner.reported(1) == [3]
    wait_until(lambda: server.service.actors()[0].trouble == "")
    assert reasons[:3] == ["made with version 1"] * 2 + ["made with version 2"]
    assert refused == [2, 2, 2]
    # Once: with a lag in it, every refusal would have a reason of its own.
    assert caplog.text.count("an unroll was refused") == 1


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_return_that_is_not_finite_is_refused_with_its_unroll(
    serve: Serve, connect: Connect, learner: FakeLearner, value: float
) -> None:
    refused: list[int] = []
    actor = connect(serve(learner, on_refused=refused.append).port)
    actor.push(make_unroll(version=1), [Episode(1.0, 5), Episode(value, 5)])
    actor.push(make_unroll(version=2), [Episode(1.0, 5)])
    assert learner.reported(1) == [2]
    assert refused == [2]


def test_a_retried_push_of_a_refused_unroll_is_a_duplicate(
    serve: Serve, stub_of: StubOf, learner: FakeLearner
) -> None:
    def refuse(unroll: Unroll, report: PushReport) -> None:
        raise RefusedUnroll("no")

    learner.put = refuse  # type: ignore[method-assign]
    stub = stub_of(serve(learner))
    stub.Handshake(handshake_request())
    outcomes = [stub.PushUnroll(push_request(0)).outcome for _ in range(2)]
    assert outcomes == [impala_pb2.REFUSED, impala_pb2.DUPLICATE]


def test_an_actor_whose_unroll_is_stale_is_told_so_and_gets_newer_parameters(
    serve: Serve, connect: Connect, learner: FakeLearner
) -> None:
    """An OK would count what nobody learns from, and the actor would not know."""
    put = learner.put
    stale: list[PushReport] = []
    learner.parameters.publish(3, make_parameters(3.0))

    def only_new(unroll: Unroll, report: PushReport) -> None:
        if unroll.parameter_version[0] < 3:
            stale.append(report)
            raise StaleUnroll("stale: there are newer parameters")
        put(unroll, report)

    learner.put = only_new  # type: ignore[method-assign]
    refused: list[int] = []
    one = serve(learner, on_refused=refused.append)
    reasons: list[str] = []
    actor = connect(one.port, on_refused=reasons.append)
    actor.push(make_unroll(version=2, n=2), [Episode(1.0, 5)])
    fetched = actor.fetch_parameters(2)
    assert fetched is not None and fetched[0] == 3
    actor.push(make_unroll(version=3, n=2))
    assert reasons == ["stale: there are newer parameters"]
    assert learner.reported(1) == [3]
    (report,) = stale
    assert (report.num_unrolls, len(report.episodes)) == (2, 1), "the games were played"
    assert refused == []


def test_a_retried_push_of_a_stale_unroll_is_a_duplicate(
    serve: Serve, stub_of: StubOf, learner: FakeLearner
) -> None:
    learner.failure = StaleUnroll("stale")
    stub = stub_of(serve(learner))
    stub.Handshake(handshake_request())
    outcomes = [stub.PushUnroll(push_request(0)).outcome for _ in range(2)]
    assert outcomes == [impala_pb2.STALE, impala_pb2.DUPLICATE]
    learner.failure = None
    assert stub.PushUnroll(push_request(1)).outcome == impala_pb2.OK
