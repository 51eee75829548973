"""Unrolls that the learner does not train on: refused, or stale."""

from __future__ import annotations

import pytest

from impala_tf.transport import PushReport, RefusedUnroll, StaleUnroll, impala_pb2
from impala_tf.types import Episode, Unroll
from tests.helpers.waiting import wait_until
from tests.helpers.wire import (
    Connect,
    FakeLearner,
    Serve,
    StubOf,
    handshake_request,
    make_unroll,
    push_request,
)

KINDS = [(RefusedUnroll, impala_pb2.REFUSED), (StaleUnroll, impala_pb2.STALE)]


@pytest.mark.parametrize(("error", "outcome"), KINDS)
def test_an_actor_is_told_why_its_unroll_is_not_used_and_continues(
    serve: Serve, connect: Connect, learner: FakeLearner, caplog: pytest.LogCaptureFixture,
    error: type[Exception], outcome: impala_pb2.Outcome,
) -> None:  # fmt: skip
    """An OK would count what nobody learns from."""
    put = learner.put

    def only_new(unroll: Unroll, report: PushReport) -> None:
        if report.parameter_version < 3:
            raise error(f"made with version {report.parameter_version}")
        put(unroll, report)

    learner.put = only_new  # type: ignore[method-assign]
    refused: list[int] = []
    reasons: list[str] = []
    one = serve(learner, on_refused=refused.append)
    actor = connect(one.port, on_refused=reasons.append)
    for version in (1, 1, 2, 3, 4):
        actor.push(make_unroll(version, n=2))
    assert learner.reported(2) == [3, 4]
    assert reasons == ["made with version 1"] * 2 + ["made with version 2"]
    assert refused == ([2, 2, 2] if outcome == impala_pb2.REFUSED else [])
    # Once: with a lag in it, every refusal would have a reason of its own.
    assert caplog.text.count("an unroll was refused") == len(refused[:1])
    wait_until(lambda: one.service.actors()[0].trouble == "")


@pytest.mark.parametrize(("error", "outcome"), KINDS)
def test_a_retried_push_of_such_an_unroll_is_a_duplicate(
    serve: Serve, stub_of: StubOf, learner: FakeLearner, error: type[Exception],
    outcome: impala_pb2.Outcome,
) -> None:  # fmt: skip
    learner.failure = error("no")
    one = serve(learner)
    stub = stub_of(one)
    stub.Handshake(handshake_request())
    outcomes = [stub.PushUnroll(push_request(0)).outcome for _ in range(2)]
    assert outcomes == [outcome, impala_pb2.DUPLICATE]
    assert one.service.actors()[0].trouble.endswith("no") == (outcome == impala_pb2.REFUSED)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_return_that_is_not_finite_is_refused_with_its_unroll(
    serve: Serve, connect: Connect, learner: FakeLearner, value: float
) -> None:
    refused: list[int] = []
    actor = connect(serve(learner, on_refused=refused.append).port)
    actor.push(make_unroll(version=1), [Episode(1.0, 5), Episode(value, 5)])
    actor.push(make_unroll(version=2), [Episode(1.0, 5)])
    assert learner.reported(1) == [2]
    assert refused == [2]
