"""The actor's side of the transport: one stream to its learner, opened again when it breaks."""

from __future__ import annotations

import itertools
import logging
import math
import queue
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc

from impala_tf.machine import certificates
from impala_tf.machine.process_memory import PeakMemory
from impala_tf.transport import credentials, impala_pb2, wire
from impala_tf.transport.codec import NamedSpec, NestCodec, decode
from impala_tf.transport.failures import (
    ClientClosed,
    DecodeError,
    HandshakeRefused,
    NoNetwork,
    RunOver,
    TransportError,
)
from impala_tf.transport.impala_pb2 import FromActor, FromLearner
from impala_tf.transport.route import Route
from impala_tf.transport.wire import PROTOCOL_VERSION, decode_specs, encode_specs
from impala_tf.types import ActorReport, Episode, Nest

_log = logging.getLogger("impala_tf.actor")

# The learner is unreachable, slow or shutting down, which is temporary.
_RETRIED = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.UNKNOWN,  # the stream was broken while the learner wrote
)
_LOOK_AGAIN_S = 1.0


class ActorClient:
    """An actor's connection to its learner. A second thread keeps it, and receives replies.

    While the learner is unreachable, requests wait. `close` may be called from any thread,
    everything else from one thread. All methods raise RunOver, ClientClosed, HandshakeRefused if
    actor and learner do not fit, and TransportError on a failure that no retry would fix.

    Attributes:
      run_steps: the run's agent steps when its learner started, from the first handshake.
      restarts: how often this actor was restarted since then.
      level: the JSON of the run's EnvironmentSpec, from the first handshake.
      push_wait_fraction: the fraction of the time between the last two pushes during which the
        actor waited for parameters, or to push.
      on_wait: called about once a second while a method waits for the learner.
    """

    def __init__(
        self,
        route: str | Route,
        credentials_dir: Path,
        actor_id: str,
        sent_specs: Nest,
        config_digest: str,
        num_environments: int = 1,
    ) -> None:
        """Connects at the first request.

        Args:
          route: host:port of the learner, or a route.
          credentials_dir: a folder with at least `certificates.ACTOR_FILES`.
          actor_id: a name that is unique among the learner's actors.
          sent_specs: the specs of what is pushed, as in `wire.RunTerms`.
          config_digest: `impala_tf.config.wire_digest`.
          num_environments: the largest N of any unroll.

        Raises: ConfigError if the credentials cannot be used.
        """
        self.run_steps = self.restarts = 0
        self.level = "{}"
        self.push_wait_fraction = 0.0
        self.on_wait: Callable[[], None] = lambda: None
        self._codec = NestCodec(sent_specs)
        self._credentials_dir = credentials_dir
        self._credentials = credentials.channel_credentials(credentials_dir)
        self._route = Route([(0, route)]) if isinstance(route, str) else route
        self._hello = impala_pb2.Hello(
            actor_id=actor_id,
            session=secrets.randbits(64),
            protocol_version=PROTOCOL_VERSION,
            config_digest=config_digest,
            unroll_specs=encode_specs(self._codec.specs),
            num_environments=num_environments,
            learners=self._route.order,
        )
        self._parameter_specs: list[NamedSpec] = []
        self._changed = threading.Condition()  # of the following fields
        self._failure: Exception | None = None  # why there will be no more replies
        self._ended = threading.Event()  # there is a failure
        self._requests: dict[str, bytes] = {}  # without a reply; each new stream repeats them
        self._replies: dict[str, Any] = {}  # by kind
        self._outbox: _Outbox | None = None  # of the stream; None while there is none
        self._stream: grpc.Call | None = None
        self._heard_s = math.inf  # when the learner last sent anything
        self._thread = threading.Thread(target=self._stay_connected, name="stream", daemon=True)

        self._next_sequence = 0
        self._unused = ""  # why the last unroll was not used
        self._last_push = time.monotonic()
        self._fetching_s = 0.0
        self._unchanged_at: float | None = None  # when the last fetch found nothing new
        self._peak_memory = PeakMemory()

    def handshake(self) -> None:
        """Agrees with the learner on what is sent; the other methods do so, too."""
        with self._changed:
            self._connect()
            self._wait_until(lambda: self._hello.run_id)

    def fetch_parameters(
        self, known_version: int, used: Sequence[int] = ()
    ) -> tuple[int, list[Any]] | None:
        """Returns (parameter_version, read-only tensors), or None if the actor is up to date.

        Waits until the learner can use another unroll, which the next push should send.

        Args:
          known_version: the parameter_version that the actor has; -1 if it has none. Then it waits
            for the learner's first parameters.
          used: indices of the parameters to get, ascending; the others are None. Empty: all.
        """
        started = time.monotonic()
        request = {"known_version": known_version, "sequence": self._next_sequence, "used": used}
        self._send("parameters", request)
        reply = self._wait_for("parameters")
        now = time.monotonic()
        # If the actor asks again before it acts, the time between also counts as waiting.
        self._fetching_s += now - (self._unchanged_at or started)
        self._unchanged_at = now if reply.unchanged else None
        if reply.unchanged:
            return None
        specs = self._parameter_specs
        if len(reply.tensors) != len(specs):
            raise DecodeError(f"expected {len(specs)} tensors, got {len(reply.tensors)}")
        tensors = [
            None if used and index not in used else decode(spec, data)
            for index, (spec, data) in enumerate(zip(specs, reply.tensors, strict=True))
        ]
        return reply.parameter_version, tensors

    def fetch_network(self, num_environments: int) -> bytes:
        """Returns the network for N environments: an encoded `actor.network.ActingModel`.

        Raises: NoNetwork with the learner's reason.
        """
        self._send("network", {"num_environments": num_environments})
        reply = self._wait_for("network")
        if reply.none:
            raise NoNetwork(reply.none)
        network: bytes = reply.network
        return network

    def infer(
        self, num_environments: int, tensors: Sequence[bytes], known_version: int
    ) -> tuple[int, Sequence[bytes]]:
        """Asks the learner to choose actions.

        Args:
          num_environments: N.
          tensors: an EnvOutput and the core state before it, [N, ...], encoded.
          known_version: it waits for a parameter_version other than this; -1: it does not wait.

        Returns:
          (parameter_version, an AgentOutput and the core state after it, encoded).
        """
        request = {"num_environments": num_environments, "tensors": tensors}
        self._send("infer", {**request, "known_version": known_version})
        reply = self._wait_for("infer")
        return reply.parameter_version, reply.tensors

    def push(
        self, sent: Nest, episodes: Sequence[Episode] = (), report: ActorReport | None = None
    ) -> None:
        """Sends unrolls [N, ...], or other data that `sent_specs` describes.

        Waits only until the learner has accepted the previous push. The arrays are copied and may
        be overwritten after the call. If the learner does not use an unroll, the log says why.

        Raises: ValueError naming an array that does not fit the specs.
        """
        num_environments, tensors = self._codec.encode(sent)
        blocked_s = self._wait_for_previous_push()
        report = (report or ActorReport())._replace(
            push_wait_fraction=self.push_wait_fraction, memory_mb=self._peak_memory.mib()
        )
        infos = (value for episode in episodes for value in episode.info)
        request = {
            "sequence": self._next_sequence,
            "num_environments": num_environments,
            "tensors": tensors,
            "episode_returns": [episode.episode_return for episode in episodes],
            "episode_lengths": [episode.episode_length for episode in episodes],
            "episode_levels": [episode.level for episode in episodes],
            "episode_infos": [math.nan if value is None else value for value in infos],
            "blocked_s": blocked_s,
            **report._asdict(),
        }
        self._next_sequence += 1
        self._send("push", request)

    def report(self, trouble: str) -> None:
        """Tells the learner, in one line, what keeps this actor from acting until the next push.

        Only if the learner is there, so that an absent one does not delay the actor.
        """
        with self._changed:
            if self._outbox is not None:
                self._outbox.put(FromActor(trouble=trouble).SerializeToString())

    def close(self) -> None:
        """Ends the stream; returns at once. An unroll that is not accepted yet is lost."""
        self._end(ClientClosed("the client is closed"))

    def _wait_for_previous_push(self) -> float:
        """Waits until the previous push is accepted; returns the seconds that it took."""
        started = time.monotonic()
        if self._next_sequence:
            before, self._unused = self._unused, self._wait_for("push").unused
            if self._unused and not before:  # the first of several
                _log.warning("the learner does not use an unroll: %s", self._unused)
        now = time.monotonic()
        waited_s = self._fetching_s + now - started
        self.push_wait_fraction = waited_s / max(now - self._last_push, 1e-9)
        self._last_push, self._fetching_s, self._unchanged_at = now, 0.0, None
        return now - started

    def _send(self, kind: str, request: dict[str, Any]) -> None:
        message: Any = {kind: request}
        data = FromActor(**message).SerializeToString()
        with self._changed:
            self._connect()
            self._requests[kind] = data
            if self._outbox is not None:
                self._outbox.put(data)

    def _wait_for(self, kind: str) -> Any:
        """Returns the reply to the request that was sent last."""
        with self._changed:
            self._wait_until(lambda: kind in self._replies)
            return self._replies.pop(kind)

    def _connect(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._thread.ident is None:
            self._thread.start()

    def _wait_until(self, condition: Callable[[], object]) -> None:
        while not condition():
            if self._failure is not None:
                raise self._failure
            if not self._changed.wait(_LOOK_AGAIN_S):
                self.on_wait()
            if self._stream is not None and time.monotonic() > self._heard_s + wire.SILENT_S:
                self._stream.cancel()  # its machine answers, but the learner hangs

    def _end(self, failure: Exception) -> None:
        with self._changed:
            self._failure = self._failure or failure
            self._ended.set()
            self._changed.notify_all()
            if self._stream is not None:
                self._stream.cancel()

    def _stay_connected(self) -> None:
        """Opens streams until the run is over or the client is closed, in a thread of its own."""
        while not self._ended.is_set():
            try:
                self._follow_stream()
            except grpc.RpcError as error:
                self._retry(error.code(), error.details() or error.code().name)
            except Exception as error:
                self._end(error)

    def _retry(self, code: grpc.StatusCode, reason: str) -> None:
        """Pauses after a broken stream; ends the client if another one would not help."""
        if code not in _RETRIED:
            self._end(TransportError(f"{code.name}: {reason}"))
        is_unreachable = code == grpc.StatusCode.UNAVAILABLE
        if is_unreachable:
            reason += (
                f" (if the learner is running: {self._credentials_dir} may hold another run's"
                " credentials)"
            )
        if not self._ended.is_set():
            pause_s = self._route.note_failure(reason, is_unreachable)
            if pause_s is None:
                self.close()
            self._ended.wait(pause_s)

    def _follow_stream(self) -> None:
        """Opens a stream and takes the replies until it ends; raises grpc.RpcError if it breaks."""
        outbox = _Outbox()
        outbox.put(FromActor(hello=self._hello).SerializeToString())
        name = ("grpc.ssl_target_name_override", certificates.LEARNER_NAME)
        options = [*wire.CHANNEL_OPTIONS, name]
        with grpc.secure_channel(self._route.address, self._credentials, options) as channel:
            act = channel.stream_stream(
                f"/{wire.SERVICE}/{wire.METHOD}", None, FromLearner.FromString
            )
            stream = act(iter(outbox))
            with self._changed:
                self._stream, self._heard_s = stream, time.monotonic()
            try:
                if not self._ended.is_set():  # else `close` did not know the stream
                    for message in stream:
                        self._take(message, outbox)
            finally:
                with self._changed:
                    self._stream = self._outbox = None
                outbox.close()
                stream.cancel()

    def _take(self, message: FromLearner, outbox: _Outbox) -> None:
        self._heard_s = time.monotonic()
        kind = message.WhichOneof("kind")
        if kind == "ping":
            outbox.put(FromActor(pong=True).SerializeToString())
        elif kind == "over":
            self._end(RunOver("the learner says that the run is over"))
        elif kind == "refused":
            name = self._hello.actor_id
            self._end(HandshakeRefused(f"the learner refused actor {name}: {message.refused}"))
        elif kind == "moved":
            self._route.go_to(message.moved)
        elif kind == "welcome":
            self._route.note_answer()
            with self._changed:
                welcome, hello = message.welcome, self._hello
                if not hello.run_id:  # not after a restart of the learner
                    self.run_steps, self.restarts = welcome.run_steps, welcome.restarts
                    self.level = welcome.level
                hello.run_id = welcome.run_id
                self._parameter_specs = decode_specs(welcome.parameter_specs)
                self._outbox = outbox
                for request in self._requests.values():
                    outbox.put(request)
                self._changed.notify_all()
        elif kind is not None:
            self._route.note_service()
            with self._changed:
                self._requests.pop(kind, None)
                self._replies[kind] = getattr(message, kind)
                self._changed.notify_all()


class _Outbox:
    """Messages to the learner. Short ones overtake the parts of long ones."""

    def __init__(self) -> None:
        self._messages: queue.PriorityQueue[tuple[int, int, bytes | None]] = queue.PriorityQueue()
        self._numbers = itertools.count()

    def put(self, data: bytes) -> None:
        if len(data) <= wire.PART_BYTES:
            self._messages.put((0, next(self._numbers), data))
            return
        for start in range(0, len(data), wire.PART_BYTES):
            end = start + wire.PART_BYTES
            part = FromActor(part={"data": data[start:end], "last": end >= len(data)})
            self._messages.put((1, next(self._numbers), part.SerializeToString()))

    def close(self) -> None:
        self._messages.put((-1, next(self._numbers), None))

    def __iter__(self) -> Iterator[bytes]:
        while (message := self._messages.get()[2]) is not None:
            yield message
