"""What the tests of the transport share: specs, unrolls, and the learner behind a server."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import tree

from impala_tf.transport import (
    PROTOCOL_VERSION,
    ActorClient,
    LearnerServer,
    ParameterStore,
    PushReport,
    QueueClosed,
    RunIdentity,
    impala_pb2,
)
from impala_tf.transport.codec import NestCodec, TensorSpec
from impala_tf.transport.handshake import spec_messages
from impala_tf.types import AgentOutput, EnvOutput, Nest, Unroll

Serve = Callable[..., LearnerServer]
Connect = Callable[..., ActorClient]
StubOf = Callable[[LearnerServer], Any]

T, A = 3, 5
PATIENCE_S = 30.0
"""Longer than anything here takes: a test that waits for it has failed."""


def unroll_specs(observation_shape: tuple[int, ...] = (4, 4, 1)) -> Unroll:
    """An LSTM agent's unroll, with every dtype that travels."""
    flags = ((T + 1,), "bool")
    return Unroll(
        parameter_version=((), "int64"),
        core_state=(((8,), "float32"), ((8,), "float32")),
        env_outputs=EnvOutput(
            reward=((T + 1,), "float32"),
            terminated=flags,
            truncated=flags,
            autoreset=flags,
            episode_start=flags,
            observation=((T + 1, *observation_shape), "uint8"),
            last_action=((T + 1,), "int32"),
        ),
        agent_outputs=AgentOutput(action=((T,), "int32"), policy_logits=((T, A), "float32")),
    )


SPECS = unroll_specs()
CODEC = NestCodec(SPECS)
RUN = RunIdentity(
    protocol_version=PROTOCOL_VERSION,
    run_id="run-1",
    config_digest="digest-1",
    unroll_specs=SPECS,
    parameter_specs=[("torso/w", (64, 32), "float32"), ("head/b", (A,), "float32")],
)


def make_unroll(version: int, n: int = 2) -> Unroll:
    """Random bits in every tensor, NaNs and infinities among them; `version` is also the seed."""
    random = np.random.default_rng(version)

    def array(spec: TensorSpec) -> np.ndarray:
        if spec.dtype == "bool":
            return random.integers(0, 2, (n, *spec.shape)).astype(bool)
        size = np.dtype(spec.dtype).itemsize * n * int(np.prod(spec.shape))
        return np.frombuffer(random.bytes(size), spec.dtype).reshape(n, *spec.shape).copy()

    unroll = tree.unflatten_as(CODEC.decode(1, _zeros()), [array(spec) for spec in CODEC.specs])
    return unroll._replace(parameter_version=np.full([n], version, np.int64))


def make_parameters(value: float) -> list[np.ndarray]:
    """Parameters of RUN, all of one value."""
    return [np.full(shape, value, dtype) for _, shape, dtype in RUN.parameter_specs]


def bits(nest: Nest) -> list[tuple[str, tuple[int, ...], bytes]]:
    """Everything about the arrays of a nest: floats compare equal only if their bits are."""
    return [(str(array.dtype), array.shape, array.tobytes()) for array in tree.flatten(nest)]


def handshake_request(**changes: Any) -> impala_pb2.HandshakeRequest:
    """What fits RUN, but for `changes`."""
    fields: dict[str, Any] = {
        "actor_id": "raw",
        "session": 7,
        "protocol_version": PROTOCOL_VERSION,
        "config_digest": "digest-1",
        "unroll_specs": spec_messages(CODEC.specs),
    }
    return impala_pb2.HandshakeRequest(**{**fields, **changes})


def push_request(sequence: int, **changes: Any) -> impala_pb2.PushUnrollRequest:
    """A push of make_unroll(sequence), but for `changes`."""
    n, tensors = CODEC.encode(make_unroll(sequence))
    fields: dict[str, Any] = {
        "actor_id": "raw",
        "session": 7,
        "run_id": "run-1",
        "sequence": sequence,
        "num_environments": n,
        "tensors": tensors,
    }
    return impala_pb2.PushUnrollRequest(**{**fields, **changes})


class FakeLearner:
    """A server's collaborators: a queue that can be full or closed, and what was reported."""

    def __init__(self) -> None:
        self.unrolls: queue.Queue[Unroll] = queue.Queue()
        self.reports: queue.Queue[PushReport] = queue.Queue()
        self.parameters = ParameterStore()
        self.has_room = threading.Event()
        self.has_room.set()
        self.failure: Exception | None = None
        self._entered = threading.Semaphore(0)

    def put(self, unroll: Unroll) -> None:
        """Blocks while there is no room, then keeps the unroll or raises `failure`."""
        self._entered.release()
        assert self.has_room.wait(2 * PATIENCE_S)  # whoever waits for it gives up first
        if self.failure is not None:
            raise self.failure
        self.unrolls.put(unroll)

    def wait_for_put(self) -> None:
        """Waits until one more call of `put` has begun."""
        assert self._entered.acquire(timeout=PATIENCE_S)

    def close_queue(self) -> None:
        """Lets every `put` go, with nothing taken."""
        self.failure = QueueClosed("the queue is closed")
        self.has_room.set()

    def reported(self, count: int) -> list[int]:
        """Returns the versions, which tell pushes apart, of the next `count` reports."""
        return [self.reports.get(timeout=PATIENCE_S).parameter_version for _ in range(count)]

    def versions(self) -> list[int]:
        """Returns the versions of all unrolls put so far."""
        return [int(unroll.parameter_version[0]) for unroll in list(self.unrolls.queue)]


class InThread:
    """A call that may block."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.result: Any = None
        self._function = function
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.result = self._function()
        except Exception as error:  # to be looked at by the test
            self.result = error

    @property
    def blocked(self) -> bool:
        """Whether the call is still under way."""
        return self._thread.is_alive()

    def wait(self) -> Any:
        """Returns what the call returned or raised."""
        self._thread.join(PATIENCE_S)
        assert not self.blocked
        return self.result


def _zeros() -> list[bytes]:
    return [bytes(np.dtype(s.dtype).itemsize * int(np.prod(s.shape))) for s in CODEC.specs]
