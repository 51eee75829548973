"""Who may connect to a learner over real gRPC, and what those who may not are told."""

from __future__ import annotations

from typing import Any

import pytest

from impala_tf.transport import (
    PROTOCOL_VERSION,
    HandshakeRefused,
)
from tests.helpers.wire import (
    SPECS,
    FakeLearner,
    hello,
    make_unroll,
    push,
    unroll_specs,
)


@pytest.mark.parametrize("first", [{"push": push(0)}, {"parameters": {}}, {}])
def test_a_stream_begins_with_a_handshake(learner: FakeLearner, first: dict[str, Any]) -> None:
    assert learner.peer(learner.serve()).ask(**first).startswith("actor_id: expected")
    assert learner.versions() == []


@pytest.mark.parametrize(
    ("differs", "said"),
    [
        ({"digest": "other"}, ["flags", "the actor has other, the learner has digest-1"]),
        (
            {"specs": unroll_specs((8, 8, 1))},
            ["env_outputs.observation", "uint8[4, 8, 8, 1]", "uint8[4, 4, 4, 1]"],
        ),
        ({"specs": SPECS._replace(core_state=())}, ["core_state.0", "nothing", "float32[8]"]),
    ],
)
def test_an_actor_that_does_not_fit_is_refused_with_both_values(
    learner: FakeLearner, differs: dict[str, Any], said: list[str]
) -> None:
    one = learner.serve()
    assert one.service.last_refusal() == ""
    with pytest.raises(HandshakeRefused) as refused:
        learner.connect(one.port, "misfit", **differs).handshake()
    shown = one.service.last_refusal()
    assert all(each in text for each in said for text in (shown, str(refused.value)))
    assert "misfit at 127.0.0.1" in shown
    learner.connect(one.port, "good").push(make_unroll(1))
    assert learner.reported(1) == [1]
    assert [view.actor_id for view in one.service.actors()] == ["good"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"protocol_version": 99}, f"the actor has 99, the learner has {PROTOCOL_VERSION}"),
        ({"run_id": "run-0"}, "the actor has run-0, the learner has run-1"),
        # Tensors of the same size would be mixed up.
        ({"unroll_specs": hello()["unroll_specs"][::-1]}, "order of tensors"),
    ],
)
def test_an_actor_of_another_release_run_or_order_is_refused_with_both_values(
    learner: FakeLearner, changes: dict[str, Any], said: str
) -> None:
    assert said in learner.peer(learner.serve()).ask(hello=hello(**changes))
