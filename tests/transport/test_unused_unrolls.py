"""Unrolls that the learner does not train on: refused, or stale."""

from __future__ import annotations

import pytest

from impala_tf.transport import RefusedUnroll, StaleUnroll
from impala_tf.types import ActorReport, Episode, Unroll
from tests.helpers.waiting import wait_until
from tests.helpers.wire import (
    FakeLearner,
    hello,
    make_unroll,
    push,
)

KINDS = [RefusedUnroll, StaleUnroll]


@pytest.mark.parametrize("error", KINDS)
def test_an_actor_is_told_why_its_unroll_is_not_used_and_continues(
    learner: FakeLearner, caplog: pytest.LogCaptureFixture, error: type[Exception]
) -> None:
    put = learner.put

    def only_new(unroll: Unroll, actor: str, episodes: list[Episode], report: ActorReport) -> None:
        if (version := unroll.parameter_version.max()) < 3:
            raise error(f"made with version {version}")
        put(unroll, actor, episodes, report)

    learner.put = only_new  # type: ignore[method-assign]
    refused: list[int] = []
    one = learner.serve(on_refused=refused.append)
    actor = learner.connect(one.port)
    for version in (1, 1, 2, 3, 4):
        actor.push(make_unroll(version, n=2))
    assert learner.reported(2) == [3, 4]
    assert refused == ([2, 2, 2] if error is RefusedUnroll else [])
    # Once: with a lag in it, every refusal would have a reason of its own.
    assert caplog.text.count("an unroll was refused: made") == len(refused[:1])
    assert caplog.text.count("does not use an unroll: made with version 1") == 1
    wait_until(lambda: one.service.sessions.shown()[0].trouble == "")


@pytest.mark.parametrize("error", KINDS)
def test_a_retried_push_of_such_an_unroll_is_a_duplicate(
    learner: FakeLearner, error: type[Exception]
) -> None:
    learner.failure = error("no")
    one = learner.serve()
    peer = learner.peer(one)
    peer.ask(hello=hello())
    assert peer.ask(push=push(0)).unused == "no"
    assert peer.ask(push=push(0)).duplicate
    assert one.service.sessions.shown()[0].trouble.endswith("no") == (error is RefusedUnroll)
