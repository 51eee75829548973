"""The actor's side of the wire: calls that go on until they succeed or the run is over."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from impala_tf.transport import credentials, impala_pb2, impala_pb2_grpc
from impala_tf.transport.backoff import Backoff
from impala_tf.transport.codec import NestCodec, TensorSpec, decode_all
from impala_tf.transport.errors import ClientClosed, HandshakeRefused, RunOver, TransportError
from impala_tf.transport.identity import PROTOCOL_VERSION, spec_messages, specs_from_messages
from impala_tf.transport.options import (
    CHANNEL_OPTIONS,
    HANDSHAKE_DEADLINE_S,
    PARAMETERS_DEADLINE_S,
    PUSH_DEADLINE_S,
)
from impala_tf.types import Episode, Unroll

# The learner is away, slow or going down: all of it passes.
_RETRIED = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
)


class ActorClient:
    """An actor's connection to its learner; one thread acts, a second one sends.

    Every call is repeated while the learner is unreachable, until the run is over or the client is
    closed. `close` may be called from any thread, everything else from one.
    """

    def __init__(
        self,
        address: str,
        credentials_dir: Path,
        actor_id: str,
        unroll_specs: Unroll,
        config_digest: str,
        on_waiting: Callable[[float, str], None] | None = None,
        on_try: Callable[[], None] | None = None,
    ) -> None:
        """Connects when first used.

        Args:
          address: host:port of the learner.
          credentials_dir: holds `credentials.ACTOR_FILES` at least.
          actor_id: unique among the learner's actors.
          unroll_specs: of (shape, dtype), without the leading N.
          config_digest: `impala_tf.config.wire_digest`.
          on_waiting: called with (seconds, reason) where a call has to be repeated for longer:
            after 5 s, then every minute; from whichever thread waits.
          on_try: called before each try of a call, from whichever thread tries.

        Raises: ConfigError if the credentials cannot be used.
        """
        self._codec = NestCodec(unroll_specs)
        self._credentials_dir = credentials_dir
        self._channel = grpc.secure_channel(
            address,
            credentials.channel_credentials(credentials_dir),
            [*CHANNEL_OPTIONS, ("grpc.ssl_target_name_override", credentials.LEARNER_NAME)],
        )
        self._stub = impala_pb2_grpc.LearnerStub(self._channel)
        self._actor_id = actor_id
        self._session = secrets.randbits(64)
        self._config_digest = config_digest
        self._on_waiting = on_waiting
        self._on_try = on_try
        self._run_id = ""
        self._parameter_specs: list[TensorSpec] = []
        self._next_sequence = 0
        self._last_push = time.monotonic()
        self.push_wait_fraction = 0.0
        """Share of the time since the push before that the last push had to wait."""
        self._closed = threading.Event()
        self._changed = threading.Condition()  # of the two below
        self._pending: impala_pb2.PushUnrollRequest | None = None
        self._failure: Exception | None = None
        self._sender = threading.Thread(target=self._send_pending, name="send", daemon=True)
        self._sender.start()

    def handshake(self) -> list[TensorSpec]:
        """Agrees with the learner and returns (name, shape, dtype) of every parameter.

        Raises: HandshakeRefused naming both sides where they do not fit; RunOver; ClientClosed.
        """
        request = impala_pb2.HandshakeRequest(
            actor_id=self._actor_id,
            session=self._session,
            protocol_version=PROTOCOL_VERSION,
            config_digest=self._config_digest,
            unroll_specs=spec_messages(self._codec.specs),
        )
        reply = self._call(self._stub.Handshake, request, HANDSHAKE_DEADLINE_S)
        if reply.outcome == impala_pb2.REFUSED:
            raise HandshakeRefused(f"the learner refused actor {self._actor_id}: {reply.message}")
        self._run_id = reply.run_id
        self._parameter_specs = specs_from_messages(reply.parameter_specs)
        return self._parameter_specs

    def parameters(self, newer_than: int) -> tuple[int, list[np.ndarray]] | None:
        """Returns (version, read-only tensors), or None if `newer_than` is the newest version.

        `newer_than` is the version at hand, -1 for none; None also before the first version.

        Raises: RunOver, ClientClosed, HandshakeRefused after a restart; TransportError on a failure
          that no retry helps against.
        """
        request = impala_pb2.GetParametersRequest(
            actor_id=self._actor_id, session=self._session, newer_than=newer_than
        )
        reply = self._call(self._stub.GetParameters, request, PARAMETERS_DEADLINE_S)
        if reply.outcome == impala_pb2.UNCHANGED:
            return None
        return reply.version, decode_all(self._parameter_specs, reply.tensors)

    def push(
        self, unroll: Unroll, episodes: Sequence[Episode] = (), agent_steps_per_s: float = 0.0
    ) -> None:
        """Hands an unroll [N, ...] to the sender, waiting only until the one before it was taken.

        The arrays are copied and may be written to afterwards.

        Raises: ValueError naming the array that does not fit the specs; else as `parameters`, also
          for what befell the push before.
        """
        num_environments, tensors = self._codec.encode(unroll)
        with self._changed:
            self._wait_for_sender()
            self._pending = impala_pb2.PushUnrollRequest(
                actor_id=self._actor_id,
                session=self._session,
                sequence=self._next_sequence,
                num_environments=num_environments,
                tensors=tensors,
                episode_returns=[episode.episode_return for episode in episodes],
                episode_lengths=[episode.episode_length for episode in episodes],
                agent_steps_per_s=agent_steps_per_s,
                push_wait_fraction=self.push_wait_fraction,
            )
            self._next_sequence += 1
            self._changed.notify_all()

    def close(self) -> None:
        """Cancels what is under way, an unroll not yet taken included. Never blocks for long."""
        with self._changed:
            self._closed.set()
            self._changed.notify_all()
        self._channel.close()
        if threading.current_thread() is not self._sender:  # on_waiting may close
            self._sender.join()

    def _wait_for_sender(self) -> None:
        started = time.monotonic()
        self._changed.wait_for(
            lambda: self._pending is None or self._failure is not None or self._closed.is_set()
        )
        if self._failure is not None:
            raise self._failure
        if self._closed.is_set():
            raise ClientClosed("push: the client is closed")
        now = time.monotonic()
        self.push_wait_fraction = (now - started) / max(now - self._last_push, 1e-9)
        self._last_push = now

    def _send_pending(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pending is not None or self._closed.is_set())
                request = self._pending
            try:
                self._call(self._stub.PushUnroll, request, PUSH_DEADLINE_S)
            except Exception as failure:  # raised again by the next push
                with self._changed:
                    self._failure = failure
                    self._changed.notify_all()
                return
            with self._changed:
                self._pending = None
                self._changed.notify_all()

    def _call(self, method: Callable[..., Any], request: Any, deadline_s: float) -> Any:
        backoff = Backoff(self._on_waiting)
        while not self._closed.is_set():
            request.run_id = self._run_id
            if self._on_try is not None:
                self._on_try()
            try:
                reply = method(request, timeout=deadline_s)
            except grpc.RpcError as error:
                if not self._closed.is_set():
                    backoff.wait(self._reason_to_retry(error), self._closed)
                continue
            except ValueError:  # how gRPC says that `close` came between
                if not self._closed.is_set():
                    raise
                continue
            if reply.outcome == impala_pb2.RUN_OVER:
                raise RunOver("the learner says that the run is over")
            return reply
        raise ClientClosed("the client is closed")

    def _reason_to_retry(self, error: grpc.RpcError) -> str:
        """Removes the cause as far as it can; TransportError where a retry would not help."""
        code, details = error.code(), error.details()
        if code == grpc.StatusCode.FAILED_PRECONDITION:
            self.handshake()  # the learner was restarted
        elif code == grpc.StatusCode.UNAVAILABLE:
            return (
                f"{details} (if the learner is up: {self._credentials_dir} may hold another run's "
                "credentials)"
            )
        elif code not in _RETRIED:
            raise TransportError(f"{code.name}: {details}") from error
        return details or code.name
