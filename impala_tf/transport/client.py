"""The actor's side of the transport: calls are retried until they succeed or the run is over."""

from __future__ import annotations

import contextlib
import math
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from impala_tf.machine import certificates
from impala_tf.machine.process_memory import PeakMemory
from impala_tf.transport import credentials, impala_pb2, wire
from impala_tf.transport.backoff import Backoff, RetryTimes
from impala_tf.transport.codec import NamedSpec, NestCodec, decode
from impala_tf.transport.errors import (
    ClientClosed,
    DecodeError,
    HandshakeRefused,
    NoNetwork,
    RunOver,
    TransportError,
)
from impala_tf.transport.handshake import PROTOCOL_VERSION, spec_messages, specs_from_messages
from impala_tf.transport.route import Route
from impala_tf.types import ActorReport, Episode, Nest

# The learner is unreachable, slow or shutting down, which is temporary.
_RETRIED = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
)
_ATTEND_AGAIN_S = 1.0


class ActorClient:
    """An actor's connection to its learner. A second thread sends unrolls.

    Every call is retried while the learner is unreachable, until the run is over or the client is
    closed. `close` may be called from any thread, everything else from one thread.

    Attributes:
      run_steps: the run's agent steps when its learner started, from the first handshake.
      restarts: how often this actor was restarted since then.
      push_wait_fraction: the fraction of the time between the last two pushes during which the
        actor waited for parameters, or to push.
    """

    def __init__(
        self,
        address: str | Route,
        credentials_dir: Path,
        actor_id: str,
        sent_specs: Nest,
        config_digest: str,
        on_retry: Callable[[float, str], None] = lambda waited_s, reason: None,
        on_call: Callable[[], None] = lambda: None,
        on_refused: Callable[[str], None] = lambda reason: None,
        num_environments: int = 1,
        retry: RetryTimes | None = None,
    ) -> None:
        """Connects at the first call.

        Args:
          address: host:port of the learner, or a route with several learners.
          credentials_dir: a folder with at least `certificates.ACTOR_FILES`.
          actor_id: a name that is unique among the learner's actors.
          sent_specs: the specs of what is pushed, as in `handshake.RunTerms`.
          config_digest: `impala_tf.config.wire_digest`.
          on_retry: called with (seconds so far, reason) while a call is retried, at the times that
            `retry` gives, in the waiting thread.
          on_call: called before every try of a call, in the calling thread.
          on_refused: called by `push` with the reason if the learner did not use the previous
            unroll. If it was stale, `fetch_parameters` returns newer parameters.
          num_environments: the largest N of any unroll.
          retry: when calls are retried; None: the default times.

        Raises: ConfigError if the credentials cannot be used.
        """
        self.run_steps = self.restarts = 0
        self.push_wait_fraction = 0.0
        self._codec = NestCodec(sent_specs)
        self._credentials_dir = credentials_dir
        self._route = Route([(0, address)]) if isinstance(address, str) else address
        self._closed = threading.Event()
        self._told_over = threading.Event()  # set by the Attend call, when the run is over
        self._connecting = threading.Lock()
        self._channel = self._new_channel()
        self._stub = wire.stub(self._channel)
        self._actor_id = actor_id
        self._session = secrets.randbits(64)
        self._run_id = ""
        self._config_digest = config_digest
        self._num_environments = num_environments
        self._on_retry = on_retry
        self._on_call = on_call
        self._on_refused = on_refused
        self._retry = retry or RetryTimes()
        self._parameter_specs: list[NamedSpec] = []
        self._next_sequence = 0
        self._last_push = time.monotonic()
        self._fetching_s = 0.0
        self._unchanged_at: float | None = None  # when the last fetch found nothing new
        self._peak_memory = PeakMemory()
        self._attendant = threading.Thread(target=self._attend, name="attend", daemon=True)
        self._sender = ThreadPoolExecutor(1, thread_name_prefix="send")
        self._sending: Future[Any] | None = None

    def handshake(self) -> None:
        """Agrees with the learner on what is sent.

        Raises: HandshakeRefused naming both sides if they do not fit; RunOver; ClientClosed.
        """
        request = impala_pb2.HandshakeRequest(
            protocol_version=PROTOCOL_VERSION,
            config_digest=self._config_digest,
            unroll_specs=spec_messages(self._codec.specs),
            num_environments=self._num_environments,
            learners=self._route.order,
        )
        reply = self._call("Handshake", request)
        while reply.outcome == impala_pb2.MOVED:
            if self._route.go_to(reply.learner):
                self._connect()
            reply = self._call("Handshake", request)
        if reply.outcome == impala_pb2.REFUSED:
            raise HandshakeRefused(f"the learner refused actor {self._actor_id}: {reply.message}")
        if not self._run_id:  # not after a restart of the learner
            self.run_steps, self.restarts = reply.run_steps, reply.restarts
        self._run_id = reply.run_id
        self._parameter_specs = specs_from_messages(reply.parameter_specs)
        with self._connecting:  # the thread that pushes may repeat the handshake, too
            if self._attendant.ident is None:
                self._attendant.start()

    def fetch_parameters(
        self, known_version: int, used: Sequence[int] = ()
    ) -> tuple[int, list[Any]] | None:
        """Returns (parameter_version, read-only tensors), or None if the actor is up to date.

        Waits until the learner can use another unroll, which the next push should send.

        Args:
          known_version: the parameter_version that the actor has; -1 if it has none. Then it waits
            for the learner's first parameters.
          used: indices of the parameters to get, ascending; the others are None. Empty: all.

        Raises: RunOver, ClientClosed, HandshakeRefused after a restart of the learner;
          TransportError on a failure that no retry would fix.
        """
        request = impala_pb2.GetParametersRequest(
            known_version=known_version, sequence=self._next_sequence, used=used
        )
        started = time.monotonic()
        reply = self._call("GetParameters", request)
        while reply.outcome == impala_pb2.WAIT:
            reply = self._call("GetParameters", request)
        now = time.monotonic()
        # If the actor asks again before it acts, the time between also counts as waiting.
        self._fetching_s += now - (self._unchanged_at or started)
        self._unchanged_at = now if reply.outcome == impala_pb2.UNCHANGED else None
        if reply.outcome == impala_pb2.UNCHANGED:
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

        Raises: NoNetwork with the learner's reason; otherwise as `fetch_parameters`.
        """
        request = impala_pb2.GetNetworkRequest(num_environments=num_environments)
        reply = self._call("GetNetwork", request)
        if reply.outcome == impala_pb2.REFUSED:
            raise NoNetwork(reply.message)
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

        Raises: as `fetch_parameters`.
        """
        request = impala_pb2.InferRequest(
            num_environments=num_environments, tensors=tensors, known_version=known_version
        )
        reply = self._call("Infer", request)
        return reply.parameter_version, reply.tensors

    def push(
        self, sent: Nest, episodes: Sequence[Episode] = (), report: ActorReport | None = None
    ) -> None:
        """Sends unrolls [N, ...], or other data that `sent_specs` describes.

        Waits only until the learner has accepted the previous push. The arrays are copied and may
        be overwritten after the call.

        Raises: ValueError naming an array that does not fit the specs; otherwise as
          `fetch_parameters`, also for a failure of the previous push.
        """
        num_environments, tensors = self._codec.encode(sent)
        blocked_s = self._wait_for_previous_push()
        report = (report or ActorReport())._replace(
            push_wait_fraction=self.push_wait_fraction, memory_mb=self._peak_memory.mib()
        )
        request = impala_pb2.PushUnrollRequest(
            sequence=self._next_sequence,
            num_environments=num_environments,
            tensors=tensors,
            episode_returns=[episode.episode_return for episode in episodes],
            episode_lengths=[episode.episode_length for episode in episodes],
            episode_levels=[episode.level for episode in episodes],
            episode_infos=[
                math.nan if value is None else value
                for episode in episodes
                for value in episode.info
            ],
            blocked_s=blocked_s,
            **report._asdict(),
        )
        self._next_sequence += 1
        try:
            self._sending = self._sender.submit(self._call, "PushUnroll", request)
        except RuntimeError as error:  # the executor raises it after `close`
            raise ClientClosed("push: the client is closed") from error

    def report(self, trouble: str) -> None:
        """Tells the learner, in one line, what keeps this actor from acting until the next push.

        It does not retry, so that an absent learner does not delay the actor.
        """
        with contextlib.suppress(grpc.RpcError, ValueError):  # ValueError: the channel was closed
            self._send("Report", impala_pb2.ReportRequest(trouble=trouble))

    def close(self) -> None:
        """Cancels running calls and returns soon. An unroll that is not accepted yet is lost."""
        self._closed.set()
        with self._connecting:
            self._channel.close()
        # Does not wait: on_retry may close the client from the sender's own thread.
        self._sender.shutdown(wait=False)

    def _wait_for_previous_push(self) -> float:
        """Waits until the previous push is accepted; returns the seconds that it took."""
        started = time.monotonic()
        if self._sending is not None:
            reply = self._sending.result()
            if reply.outcome in (impala_pb2.REFUSED, impala_pb2.STALE):
                self._on_refused(reply.message)
        if self._closed.is_set():
            raise ClientClosed("push: the client is closed")
        now = time.monotonic()
        waited_s = self._fetching_s + now - started
        self.push_wait_fraction = waited_s / max(now - self._last_push, 1e-9)
        self._last_push, self._fetching_s, self._unchanged_at = now, 0.0, None
        return now - started

    def _attend(self) -> None:
        """Shows the learner that the actor is alive whenever it asks, to keep the actor's name."""
        while not self._closed.is_set():
            try:
                reply = self._send("Attend", impala_pb2.AttendRequest())
                if reply.outcome == impala_pb2.RUN_OVER:
                    self._told_over.set()  # by the actor's next call, the learner may have exited
                    return
            except (grpc.RpcError, ValueError):  # ValueError: the channel was closed
                self._closed.wait(_ATTEND_AGAIN_S)  # the other calls report the problem

    def _call(self, method: str, request: Any) -> Any:
        """Calls until the learner answers, and returns its reply.

        Args:
          method: the call's name.
          request: the request, without the fields that identify the caller.
        """
        backoff, reply = Backoff(self._on_retry, self._retry), None
        while reply is None:
            reply = self._try(method, request, backoff)
        return reply

    def _try(self, method: str, request: Any, backoff: Backoff) -> Any:
        """Returns the reply; None, after a pause, if the call failed and should be retried.

        Raises: RunOver; ClientClosed; HandshakeRefused after a restart of the learner;
          TransportError if no retry would help.
        """
        if self._closed.is_set():
            raise ClientClosed("the client is closed")
        if self._told_over.is_set():
            raise RunOver("the learner says that the run is over")
        self._on_call()
        channel = self._channel
        try:
            reply = self._send(method, request)
        except grpc.RpcError as error:
            if not self._closed.is_set():
                reason = self._reason_to_retry(error)
                # Not DEADLINE_EXCEEDED, which does not mean that the learner is away: a push waits
                # while the queue is full.
                if error.code() == grpc.StatusCode.UNAVAILABLE and self._route.failed():
                    self._connect()
                    backoff.hurry()
                backoff.wait(reason, self._closed)
            return None
        except ValueError:  # the channel was closed
            if not self._closed.is_set() and channel is self._channel:
                raise
            return None
        self._route.answered()
        if reply.outcome == impala_pb2.RUN_OVER:
            raise RunOver("the learner says that the run is over")
        return reply

    def _new_channel(self) -> grpc.Channel:
        return grpc.secure_channel(
            self._route.address,
            credentials.channel_credentials(self._credentials_dir),
            [*wire.CHANNEL_OPTIONS, ("grpc.ssl_target_name_override", certificates.LEARNER_NAME)],
        )

    def _connect(self) -> None:
        """Connects to another learner. Other threads' running calls fail and are retried there."""
        with self._connecting:
            if self._closed.is_set():
                return
            before, self._channel = self._channel, self._new_channel()
            self._stub = wire.stub(self._channel)
        before.close()

    def _send(self, method: str, request: Any) -> Any:
        """Identifies the caller, and tries a call once; raises what `wire.stub` says."""
        request.actor_id, request.session = self._actor_id, self._session
        request.run_id = self._run_id
        return getattr(self._stub, method)(request, timeout=wire.DEADLINES_S.get(method))

    def _reason_to_retry(self, error: grpc.RpcError) -> str:
        """Returns why the call is retried; raises TransportError if no retry would help."""
        code, details = error.code(), error.details()
        if code == grpc.StatusCode.FAILED_PRECONDITION:
            self.handshake()  # the learner was restarted
        elif code == grpc.StatusCode.UNAVAILABLE:
            return (
                f"{details} (if the learner is running: {self._credentials_dir} may hold another "
                "run's credentials)"
            )
        elif code not in _RETRIED:
            raise TransportError(f"{code.name}: {details}") from error
        return details or code.name
