"""Who may connect to a learner over real gRPC, and what those who may not are told."""

from __future__ import annotations

import re
from typing import Any

import pytest

from impala_tf.transport import PROTOCOL_VERSION
from impala_tf.transport.codec import NestCodec
from impala_tf.transport.wire import encode_specs
from tests.helpers.wire import FakeLearner, hello, make_unroll, unroll_specs

FITTING = hello()["unroll_specs"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"protocol_version": 99}, f"the actor has 99, the learner has {PROTOCOL_VERSION}"),
        ({"run_id": "run-0"}, "the actor has run-0, the learner has run-1"),
        ({"config_digest": "other"}, "flags .* the actor has other, the learner has digest-1"),
        (
            {"unroll_specs": encode_specs(NestCodec(unroll_specs((8, 8, 1))).specs)},
            r"env_outputs.observation .*uint8\[4, 8, 8, 1\], .*uint8\[4, 4, 4, 1\]",
        ),
        ({"unroll_specs": FITTING[:1] + FITTING[2:]}, r"core_state.0.* nothing, .*float32\[8\]"),
        # Tensors of the same size would be mixed up.
        ({"unroll_specs": FITTING[::-1]}, "order of tensors"),
    ],
)
def test_an_actor_that_does_not_fit_is_refused_with_both_values(
    learner: FakeLearner, caplog: pytest.LogCaptureFixture, changes: dict[str, Any], said: str
) -> None:
    one = learner.serve()
    assert re.search(said, learner.peer(one).ask(hello=hello(**changes)))
    assert "raw at 127.0.0.1" in caplog.text and re.search(said, caplog.text)
    learner.connect(one.port, "good").push(make_unroll(1))
    assert learner.reported(1) == [1]
    assert [view.actor_id for view in one.service.sessions.shown()] == ["good"]
