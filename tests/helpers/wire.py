"""What the tests of the transport share: specs, messages, and a learner behind a server."""

from __future__ import annotations

import contextlib
import math
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import tree

from impala_tf.machine import certificates
from impala_tf.transport import (
    PROTOCOL_VERSION,
    ActorClient,
    LearnerServer,
    LearnerService,
    ParameterStore,
    Pushes,
    QueueClosed,
    Route,
    RunTerms,
    credentials,
    impala_pb2,
)
from impala_tf.transport.codec import NestCodec
from impala_tf.transport.wire import encode_specs
from impala_tf.types import (
    ActorReport,
    AgentOutput,
    ArraySpec,
    EnvOutput,
    Episode,
    Nest,
    Unroll,
)
from tests.helpers.unrolls import random_array

T, A = 3, 5
PATIENCE_S = 30.0
"""Longer than anything here takes: a test that waits this long has failed."""


def unroll_specs(observation_shape: tuple[int, ...] = (4, 4, 1)) -> Unroll:
    """Returns the specs of an LSTM agent's unroll, with every dtype that is sent."""
    flags = ArraySpec((T + 1,), "bool")
    return Unroll(
        parameter_version=ArraySpec((), "int64"),
        core_state=(ArraySpec((8,), "float32"), ArraySpec((8,), "float32")),
        env_outputs=EnvOutput(
            reward=ArraySpec((T + 1,), "float32"),
            terminated=flags,
            truncated=flags,
            autoreset=flags,
            episode_start=flags,
            observation=ArraySpec((T + 1, *observation_shape), "uint8"),
            last_action=ArraySpec((T + 1,), "int32"),
        ),
        agent_outputs=AgentOutput(
            action=ArraySpec((T,), "int32"), policy_logits=ArraySpec((T, A), "float32")
        ),
        level=ArraySpec((), "int32"),
    )


SPECS = unroll_specs()
CODEC = NestCodec(SPECS)
RUN = RunTerms(
    run_id="run-1",
    config_digest="digest-1",
    sent_specs=SPECS,
    parameter_specs=[("torso/w", (64, 32), "float32"), ("head/b", (A,), "float32")],
    most_episodes=2 + T,
)


def make_unroll(version: int, n: int = 2) -> Unroll:
    """Returns random unrolls with a NaN and an infinity; `version` is also the seed."""
    rng = np.random.default_rng(version)
    arrays = [random_array(spec, (n,), rng) for spec in CODEC.specs]
    unroll = tree.unflatten_as(SPECS, arrays)
    unroll.agent_outputs.policy_logits[0, :2, 0] = np.nan, -np.inf
    return unroll._replace(parameter_version=np.full([n], version, np.int64))


def make_parameters(value: float) -> list[np.ndarray]:
    """Returns parameters of RUN that all have one value."""
    return [np.full(shape, value, dtype) for _, shape, dtype in RUN.parameter_specs]


def bits(nest: Nest) -> list[tuple[str, tuple[int, ...], bytes]]:
    """Returns everything about the arrays of a nest; floats are equal only if their bits are."""
    return [(str(array.dtype), array.shape, array.tobytes()) for array in tree.flatten(nest)]


def hello(**changes: Any) -> dict[str, Any]:
    """Returns a handshake that fits RUN, except for `changes`."""
    fields: dict[str, Any] = {
        "actor_id": "raw",
        "session": 7,
        "protocol_version": PROTOCOL_VERSION,
        "config_digest": "digest-1",
        "unroll_specs": encode_specs(CODEC.specs),
        "num_environments": 8,
    }
    return {**fields, **changes}


def push(sequence: int, **changes: Any) -> dict[str, Any]:
    """Returns a push of make_unroll(sequence), except for `changes`."""
    n, tensors = CODEC.encode(make_unroll(sequence))
    return {"sequence": sequence, "num_environments": n, "tensors": tensors, **changes}


class Peer:
    """The actor's end of a stream by hand, for what ActorClient never does."""

    def __init__(
        self,
        port: int,
        channel_credentials: grpc.ChannelCredentials | None,
        name: str = certificates.LEARNER_NAME,
        compression: grpc.Compression | None = None,
    ) -> None:
        options = [
            ("grpc.ssl_target_name_override", name),
            ("grpc.max_send_message_length", -1),
        ]
        address = f"127.0.0.1:{port}"
        self._channel = (
            grpc.insecure_channel(address)
            if channel_credentials is None
            else grpc.secure_channel(address, channel_credentials, options)
        )
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        act = self._channel.stream_stream(
            "/impala.Learner/Act", None, impala_pb2.FromLearner.FromString
        )
        outgoing = iter(self._outgoing.get, None)
        self._stream = act(outgoing, timeout=2 * PATIENCE_S, compression=compression)

    def send(self, data: bytes | None = None, **kind: Any) -> None:
        """Sends bytes, or a message."""
        if data is None:
            data = impala_pb2.FromActor(**kind).SerializeToString()
        self._outgoing.put(data)

    def receive(self) -> Any:
        """Returns the content of the learner's next message; raises grpc.RpcError."""
        for message in self._stream:
            if not message.ping:
                return getattr(message, message.WhichOneof("kind"))
        return None

    def ask(self, data: bytes | None = None, **kind: Any) -> Any:
        """Sends a message, and returns the answer."""
        self.send(data, **kind)
        return self.receive()

    def status(self, data: bytes | None = None, **kind: Any) -> grpc.StatusCode:
        """Sends a message; returns the status of the stream that it ends, or OK."""
        try:
            self.ask(data, **kind)
        except grpc.RpcError as error:
            return error.code()
        return grpc.StatusCode.OK

    def close(self) -> None:
        """Breaks the connection."""
        self._stream.cancel()
        self._outgoing.put(None)
        self._channel.close()


def files_of(folder: Path, machine: str) -> Path:
    """The folder of a machine, with that machine's files only."""
    files = folder.parent / machine
    files.mkdir(exist_ok=True)
    for file, text in certificates.of_machine(folder, machine).items():
        (files / file).write_text(text)
        (files / file).chmod(0o600)
    return files


_PUSHES_OPTIONS = {"on_refused", "grants", "most_waiting_bytes"}


class FakeLearner:
    """A queue that can be full or closed, parameters, reports; servers and peers over real gRPC.

    Args:
      folder: the credentials of the run.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.unrolls: queue.Queue[Unroll] = queue.Queue()
        # Version, actor, episodes and its report, of each push.
        self.reports: queue.Queue[tuple[int, str, list[Episode], ActorReport]] = queue.Queue()
        self.parameters = ParameterStore()
        self.has_room = threading.Event()
        self.has_room.set()
        self.failure: Exception | None = None
        self._entered = threading.Semaphore(0)
        self._closing = contextlib.ExitStack()

    def serve(
        self, port: int = 0, terms: RunTerms = RUN, folder: Path | None = None, **options: Any
    ) -> LearnerServer:
        """Returns a running server, whose service and pushes have these options."""
        of_pushes = {name: options.pop(name) for name in _PUSHES_OPTIONS & options.keys()}
        service = LearnerService(Pushes(terms, self.put, **of_pushes), self.parameters, **options)
        one = LearnerServer(f"127.0.0.1:{port}", folder or self.folder, service)
        one.start()
        self._closing.callback(one.stop, 0)
        return one

    def connect(
        self,
        port: int | Route,
        actor_id: str = "actor-0",
        folder: Path | None = None,
        give_up_s: float = math.inf,
    ) -> ActorClient:
        """Returns a client of a server."""
        if isinstance(port, int):
            port = Route([(0, f"127.0.0.1:{port}")], give_up_s)
        one = ActorClient(port, folder or self.folder, actor_id, SPECS, RUN.config_digest, 8)
        self._closing.callback(one.close)
        return one

    def peer(self, one: LearnerServer, folder: Path | None = None, **options: Any) -> Peer:
        """Returns a stream by hand to a server."""
        with_certificate = credentials.channel_credentials(folder or self.folder)
        one_peer = Peer(one.port, with_certificate, **options)
        self._closing.callback(one_peer.close)
        return one_peer

    def another(self) -> FakeLearner:
        """Returns another learner of the run."""
        other = FakeLearner(self.folder)
        self._closing.callback(other.close)
        return other

    def close(self) -> None:
        """Ends everything that this learner has started."""
        self.close_queue()
        self._closing.close()

    def put(self, unroll: Unroll, actor: str, episodes: list[Episode], report: ActorReport) -> None:
        """Waits while there is no room, then keeps all of it or raises `failure`."""
        self._entered.release()
        assert self.has_room.wait(2 * PATIENCE_S)  # the caller times out first
        if self.failure is not None:
            raise self.failure
        self.unrolls.put(unroll)
        self.reports.put((int(unroll.parameter_version.max()), actor, episodes, report))

    def wait_for_put(self) -> None:
        """Waits until one more call of `put` has begun."""
        assert self._entered.acquire(timeout=PATIENCE_S)

    def close_queue(self) -> None:
        """Makes every waiting `put` raise QueueClosed."""
        self.failure = QueueClosed("the queue is closed")
        self.has_room.set()

    def reported(self, count: int) -> list[int]:
        """Returns the versions of the next `count` reports; they identify the pushes."""
        return [self.reports.get(timeout=PATIENCE_S)[0] for _ in range(count)]

    def versions(self) -> list[int]:
        """Returns the versions of all unrolls put so far."""
        return [int(unroll.parameter_version[0]) for unroll in list(self.unrolls.queue)]


class InThread:
    """A call in a thread, because it may block."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.result: Any = None
        self._function = function
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.result = self._function()
        except Exception as error:  # the test looks at it
            self.result = error

    @property
    def blocked(self) -> bool:
        """Whether the call has not returned yet."""
        return self._thread.is_alive()

    def wait(self) -> Any:
        """Returns what the call returned or raised."""
        self._thread.join(PATIENCE_S)
        assert not self.blocked
        return self.result
