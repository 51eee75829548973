"""The learner's side of the transport: admits actors and answers their calls."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Collection, Container, Sequence
from concurrent.futures import Future
from typing import Any

import grpc

from impala_tf.transport import impala_pb2
from impala_tf.transport.calls import (
    answering,
    check_environments,
    host_of,
    name_in_certificate,
    shown,
)
from impala_tf.transport.codec import NamedSpec
from impala_tf.transport.errors import (
    CallError,
    DecodeError,
    HandshakeRefused,
    NoNetwork,
    RefusedUnroll,
    RunOver,
)
from impala_tf.transport.handshake import check_fits, spec_messages
from impala_tf.transport.parameter_store import ParameterStore
from impala_tf.transport.pushes import Pushes
from impala_tf.transport.sessions import ActorView, Session

logger = logging.getLogger(__name__)

Networks = Callable[[int], "Future[bytes]"]
"""Takes N. Converts the network to the bytes of an `ActingModel`. May fail with NoNetwork."""

Infer = Callable[[int, Sequence[bytes]], "Future[tuple[int, list[bytes]]]"]
"""Takes num_environments and the tensors of an InferRequest.

Results in the parameter_version and tensors of an InferReply. May fail with DecodeError or
RefusedUnroll if it cannot be answered, or with QueueClosed if the learner stops."""

_WARN_AGAIN_S = 60.0
_LONGEST_TROUBLE = 400
# How often and for how long to poll for a new version. If none comes, the next update lacks the
# unrolls of a lost actor, and the other actors have to fill the batch.
_POLL_S = 0.002
_PATIENCE_S = 60.0


class LearnerService:
    """Answers the calls of all actors, in the event loop of the server.

    Requests and replies are bytes, so that parameters are encoded only once for all actors.

    Args:
      pushes: takes what actors push, and has the terms that they must agree with.
      parameters: the store where the learner publishes. Actors wait for its first version.
      parameter_lag: how many updates an actor's parameters must lag behind to be replaced.
      infer: chooses actions for actors; None: actors choose their own.
      networks: converts the network for actors that run it without TensorFlow; None: actors run it
        with TensorFlow.
      run_steps: agent steps of the run so far, see `ActorClient.run_steps`.
      number: this learner's number among all learners of the run.
      members: the numbers of the learners that train together, including this one.

    Attributes:
      terms: what actors must agree with.
      sessions: the actors' sessions.
      revoked: the names of revoked certificates, which are refused.
    """

    def __init__(
        self,
        pushes: Pushes,
        parameters: ParameterStore,
        parameter_lag: int = 1,
        infer: Infer | None = None,
        networks: Networks | None = None,
        run_steps: int = 0,
        number: int = 0,
        members: Collection[int] = (0,),
    ) -> None:
        self.terms = pushes.terms
        self.sessions = pushes.sessions
        self.revoked: Container[str] = ()
        self._pushes = pushes
        self._grants = pushes.grants
        self._parameters = parameters
        self._parameter_lag = parameter_lag
        self._parameter_specs = [NamedSpec.of(*spec) for spec in self.terms.parameter_specs]
        self._networks = networks
        self._run_steps = run_steps
        self._number, self._members = number, members
        self._over = threading.Event()
        self._infer = infer
        self._num_held = 0  # calls that wait for the learner's next update
        self._warned_at: dict[str, float] = {}
        self._last_refusal = (float("-inf"), "")

    @property
    def is_over(self) -> bool:
        """Whether the run is over."""
        return self._over.is_set()

    def close(self) -> None:
        """Stops the threads that put unrolls into the queue, once `put` returns."""
        self._pushes.close()

    def finish(self) -> None:
        """Answers every call with RUN_OVER from now on. Call it in the event loop."""
        self._over.set()
        self._grants.release()
        self.sessions.release()

    def num_acting(self) -> int:
        """Returns the number of live actors that do not wait for the learner's next update."""
        return self.sessions.num_present() - self._num_held

    def actors(self) -> list[ActorView]:
        """Returns every actor that is present or was recently; see `Sessions.views`."""
        return self.sessions.views()

    def last_refusal(self) -> str:
        """Returns which actor was refused last, and why; '' if none was in the last minute."""
        at_s, refusal = self._last_refusal
        return refusal if time.monotonic() - at_s < _WARN_AGAIN_S else ""

    @answering
    async def Handshake(  # noqa: N802
        self, request: impala_pb2.HandshakeRequest, context: Any
    ) -> impala_pb2.HandshakeReply:
        """Admits an actor that matches, unless another live actor has its name.

        If a learner that the actor prefers trains, the actor is sent there.
        """
        self._check_not_over()
        host, certificate = host_of(context), name_in_certificate(context)
        try:
            if certificate in self.revoked:
                raise HandshakeRefused(f"its certificate, {shown(certificate)}, was revoked")
            check_fits(request, self.terms, self._pushes.codec.specs)
            trains = (each for each in request.learners if each in self._members)
            learner = next(trains, self._number)
            if learner != self._number:
                return impala_pb2.HandshakeReply(outcome=impala_pb2.MOVED, learner=learner)
            session = await self.sessions.admit(
                request.actor_id,
                request.session,
                request.num_environments,
                host,
                certificate,
                self.revoked,
            )
        except HandshakeRefused as refused:
            self._note_refusal(
                host, f"refused actor {shown(request.actor_id)} at {host}: {refused}"
            )
            return impala_pb2.HandshakeReply(outcome=impala_pb2.REFUSED, message=str(refused))
        return impala_pb2.HandshakeReply(
            outcome=impala_pb2.OK,
            run_id=self.terms.run_id,
            parameter_specs=spec_messages(self._parameter_specs),
            run_steps=self._run_steps,
            restarts=session.restarts,
        )

    @answering
    async def Attend(  # noqa: N802
        self, request: impala_pb2.AttendRequest, context: Any
    ) -> impala_pb2.AttendReply:
        """Waits. When it returns, an actor that is alive calls it again."""
        self._check_not_over()
        session = self._session_of(request, context)
        try:
            await session.attend()
        except asyncio.CancelledError:  # its connection is closed
            self._grants.lost(session)
            raise
        self._check_not_over()  # a busy actor may not make any other call for a long time
        return impala_pb2.AttendReply(outcome=impala_pb2.OK)

    @answering
    async def Report(  # noqa: N802
        self, request: impala_pb2.ReportRequest, context: Any
    ) -> impala_pb2.ReportReply:
        """Notes what keeps an actor from acting."""
        trouble = shown(request.trouble, _LONGEST_TROUBLE)
        self.sessions.update(self._session_of(request, context), trouble=trouble)
        return impala_pb2.ReportReply(outcome=impala_pb2.OK)

    @answering
    async def GetParameters(  # noqa: N802
        self, request: impala_pb2.GetParametersRequest, context: Any
    ) -> impala_pb2.GetParametersReply | bytes:
        """Waits until the actor may act. Sends the newest parameters, unless it has them."""
        self._check_not_over()
        session = self._session_of(request, context)
        if self._parameters.latest is None:
            raise CallError(grpc.StatusCode.UNAVAILABLE, "the learner has no parameters yet")
        may_act = await self._grants.wait(session, request.sequence)
        self._check_not_over()
        if not may_act:
            return impala_pb2.GetParametersReply(outcome=impala_pb2.WAIT)
        snapshot = self._parameters.latest
        # After a resume from a checkpoint, the learner's version may be lower than the actor's.
        behind = snapshot.parameter_version - request.known_version
        if 0 <= behind < self._parameter_lag and request.known_version >= 0:
            return impala_pb2.GetParametersReply(outcome=impala_pb2.UNCHANGED)
        return snapshot.reply(self._parameter_specs, tuple(request.used))

    @answering
    async def GetNetwork(  # noqa: N802
        self, request: impala_pb2.GetNetworkRequest, context: Any
    ) -> impala_pb2.GetNetworkReply:
        """Sends the network, for an actor that runs it without TensorFlow."""
        self._check_not_over()
        check_environments(
            request.num_environments, self._session_of(request, context).num_environments
        )
        try:
            if self._networks is None:
                raise NoNetwork("the learner converts none")
            network_of = self._networks(request.num_environments)
            conversion = asyncio.wrap_future(network_of)
            # Shielded, because other actors get the same network, even if this one is lost.
            network = await asyncio.shield(conversion)
        except NoNetwork as error:
            return impala_pb2.GetNetworkReply(outcome=impala_pb2.REFUSED, message=str(error))
        return impala_pb2.GetNetworkReply(outcome=impala_pb2.OK, network=network)

    @answering
    async def Infer(  # noqa: N802
        self, request: impala_pb2.InferRequest, context: Any
    ) -> impala_pb2.InferReply:
        """Chooses actions for an actor's environments, once there is a version that it lacks."""
        self._check_not_over()
        check_environments(
            request.num_environments, self._session_of(request, context).num_environments
        )
        if self._infer is None:
            raise CallError(
                grpc.StatusCode.INVALID_ARGUMENT, "the learner was started with --inference=actor"
            )
        await self._wait_for_other_version(request.known_version)
        self._check_not_over()
        try:
            answer = self._infer(request.num_environments, request.tensors)
            version, tensors = await asyncio.wrap_future(answer)
        except (DecodeError, RefusedUnroll) as error:
            raise CallError(grpc.StatusCode.INVALID_ARGUMENT, str(error)) from error
        return impala_pb2.InferReply(
            outcome=impala_pb2.OK, parameter_version=version, tensors=tensors
        )

    async def _wait_for_other_version(self, known_version: int) -> None:
        if known_version < 0:
            return
        deadline = time.monotonic() + _PATIENCE_S
        self._num_held += 1
        try:
            while time.monotonic() < deadline and not self.is_over:
                snapshot = self._parameters.latest
                if snapshot is not None and snapshot.parameter_version != known_version:
                    return
                await asyncio.sleep(_POLL_S)
        finally:
            self._num_held -= 1

    @answering
    async def PushUnroll(  # noqa: N802
        self, request: impala_pb2.PushUnrollRequest, context: Any
    ) -> impala_pb2.PushUnrollReply:
        """Puts an unroll into the queue, exactly once. Waits while the queue is full."""
        self._check_not_over()
        return await self._pushes.push(self._session_of(request, context), request)

    def _check_not_over(self) -> None:
        if self.is_over:
            raise RunOver

    def _session_of(self, request: Any, context: Any) -> Session:
        """Returns the session of a request (not of a handshake)."""
        certificate = name_in_certificate(context)
        session = self.sessions.get(request.actor_id, request.session, certificate)
        # If the actor's certificate was revoked, it learns that from the handshake.
        is_other_run = request.run_id != self.terms.run_id
        if session is None or is_other_run or certificate in self.revoked:
            raise CallError(grpc.StatusCode.FAILED_PRECONDITION, "handshake first")
        return session

    def _note_refusal(self, host: str, refusal: str) -> None:
        """Logs a refusal, but not too often for the same host, which may retry."""
        now = time.monotonic()
        self._last_refusal = (now, refusal)
        if now - self._warned_at.get(host, float("-inf")) < _WARN_AGAIN_S:
            return
        if len(self._warned_at) > 1000:
            self._warned_at.clear()
        self._warned_at[host] = now
        logger.warning("%s", refusal)
