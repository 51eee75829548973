"""Who may connect to a learner over real gRPC, and what those who may not are told."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from impala_tf.config import ConfigError
from impala_tf.transport import (
    PROTOCOL_VERSION,
    HandshakeRefused,
    check_parameters,
    impala_pb2,
)
from tests.helpers.wire import (
    SPECS,
    Connect,
    FakeLearner,
    Serve,
    StubOf,
    handshake_request,
    make_unroll,
    push_request,
    unroll_specs,
)


@pytest.mark.parametrize("call", ["PushUnroll", "GetParameters"])
def test_every_call_needs_a_handshake_first(
    serve: Serve, stub_of: StubOf, learner: FakeLearner, call: str
) -> None:
    stub = stub_of(serve(learner))
    request = push_request(0) if call == "PushUnroll" else impala_pb2.GetParametersRequest()
    with pytest.raises(grpc.RpcError) as refused:
        getattr(stub, call)(request)
    assert refused.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert refused.value.details() == "handshake first"
    assert learner.versions() == []


@pytest.mark.parametrize(
    ("differs", "said"),
    [
        ({"digest": "other"}, "config digest: the actor has other, the learner has digest-1"),
        (
            {"digest": "other"},
            "its flags for the level, the network or unrolls are not the learner",
        ),
        (
            {"specs": unroll_specs((8, 8, 1))},
            "env_outputs.observation: the actor has env_outputs.observation uint8[4, 8, 8, 1], "
            "the learner has env_outputs.observation uint8[4, 4, 4, 1]",
        ),
        (
            {"specs": SPECS._replace(core_state=())},
            "tensor core_state.0: the actor has nothing, the learner has core_state.0 float32[8]",
        ),
    ],
)
def test_an_actor_that_does_not_fit_is_refused_with_both_values(
    serve: Serve, connect: Connect, learner: FakeLearner, differs: dict[str, Any], said: str
) -> None:
    one = serve(learner)
    assert one.service.last_refusal() == ""
    with pytest.raises(HandshakeRefused) as refused:
        connect(one.port, "misfit", **differs).handshake()
    assert said in str(refused.value)
    assert one.service.last_refusal().startswith("refused actor misfit at 127.0.0.1: ")
    assert said in one.service.last_refusal()
    connect(one.port, "good").push(make_unroll(1))
    assert learner.reported(1) == [1]
    assert [view.actor_id for view in one.service.actors()] == ["good"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"protocol_version": 99},
            f"protocol version: the actor has 99, the learner has {PROTOCOL_VERSION}",
        ),
        ({"run_id": "run-0"}, "run: the actor has run-0, the learner has run-1"),
    ],
)
def test_an_actor_of_another_release_or_run_is_refused_with_both_values(
    serve: Serve, stub_of: StubOf, learner: FakeLearner, changes: dict[str, Any], said: str
) -> None:
    reply = stub_of(serve(learner)).Handshake(handshake_request(**changes))
    assert (reply.outcome, reply.message) == (impala_pb2.REFUSED, said)


def test_tensors_in_another_order_are_refused(
    serve: Serve, stub_of: StubOf, learner: FakeLearner
) -> None:
    """Tensors of the same size would be mixed up."""
    request = handshake_request()
    backwards = handshake_request(unroll_specs=list(request.unroll_specs)[::-1])
    reply = stub_of(serve(learner)).Handshake(backwards)
    assert reply.outcome == impala_pb2.REFUSED
    assert reply.message.startswith("order of tensors")


def test_parameters_that_cannot_be_sent_are_refused_before_training() -> None:
    """Every actor would end with a traceback, and be restarted for ever."""
    check_parameters([("w", (8192, 8000), "float32")], "Wide")
    with pytest.raises(ConfigError) as refused:
        check_parameters([("w", (8192, 8192), "float32"), ("b", (8192,), "float32")], "Wide")
    (line,) = refused.value.problems
    assert line.startswith("--agent_name=Wide: its parameters take 256 MB, and 255 MB can be sent")
    assert "--width_scale" in line
