"""The learner's side of the transport: admits actors, and counts every unroll exactly once."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Container
from concurrent.futures import Future
from typing import Any

import grpc

from impala_tf.transport import callers, impala_pb2
from impala_tf.transport.calls import answering, check_environments, reply
from impala_tf.transport.codec import TensorSpec
from impala_tf.transport.errors import NoNetwork
from impala_tf.transport.grants import Grants
from impala_tf.transport.handshake import RunIdentity, mismatches, shown, spec_messages
from impala_tf.transport.inference import Infer, InferenceCalls
from impala_tf.transport.parameter_store import ParameterStore
from impala_tf.transport.push_checks import CallError
from impala_tf.transport.pushes import Pushes, PushReport
from impala_tf.transport.sessions import ActorView, Session, Sessions

logger = logging.getLogger(__name__)

Networks = Callable[[int], "Future[bytes]"]
"""Converts the network for N environments, for `litert.ActingModel`. May fail with NoNetwork."""

_WARN_AGAIN_S = 60.0
_LONGEST_TROUBLE = 400


class LearnerService:
    """Answers the calls of all actors, in the event loop of the server.

    Requests and replies are bytes: parameters, the same for all actors, are encoded only once.

    Args:
      run: what actors must agree with.
      put: takes a decoded unroll of read-only NumPy arrays [N, ...]. Called from several threads.
        Blocks while the queue is full, which makes the actor wait. Raises QueueClosed when the
        learner takes no more unrolls: the actor retries later or, after `finish`, ends. Raises
        RefusedUnroll if the learner does not train on it: the actor is told why. Raises StaleUnroll
        if it learns from newer parameters only: the actor fetches those.
      parameters: where the learner publishes. Actors wait until there is a first version.
      on_push: called once for every push that was put, from the threads that put.
      on_refused: called with the number of unrolls of every push that was refused.
      on_stale: called for every push that was stale, from the threads that put.
      parameter_lag: parameters that are fewer updates old than this are new enough for an actor.
      infer: chooses actions for actors, see `inference.Infer`; None: they do it themselves.
      networks: converts the network for actors that run it without TensorFlow; None: they have
        their own.
      grants: how many unrolls may be in the making; None: any number.
      sessions: which actors there are, and how long they are remembered.
      most_waiting_bytes: of unrolls that wait for room in the queue; pushes beyond it are told to
        retry. None: a quarter of the machine's memory.
      run_steps: agent steps that the run has now, see `handshake.Start`.

    Attributes:
      run: as given.
      revoked: the names in certificates that are refused.
    """

    def __init__(
        self,
        run: RunIdentity,
        put: Callable[[Any], None],
        parameters: ParameterStore,
        on_push: Callable[[PushReport], None] | None = None,
        on_refused: Callable[[int], None] | None = None,
        on_stale: Callable[[PushReport], None] | None = None,
        parameter_lag: int = 1,
        infer: Infer | None = None,
        networks: Networks | None = None,
        grants: Grants | None = None,
        sessions: Sessions | None = None,
        most_waiting_bytes: int | None = None,
        run_steps: int = 0,
    ) -> None:
        self.run = run
        self.revoked: Container[str] = ()
        self._run_steps = run_steps
        self._parameter_specs = [TensorSpec.of(*spec) for spec in run.parameter_specs]
        self._parameters = parameters
        self._parameter_lag = parameter_lag
        self._networks = networks
        self._over = threading.Event()
        self._grants = grants or Grants()
        self._warned_at: dict[str, float] = {}
        self._last_refusal = (float("-inf"), "")
        self.sessions = sessions or Sessions()
        self._pushes = Pushes(
            run,
            put,
            self.sessions,
            self._grants,
            on_push,
            on_refused,
            on_stale,
            most_waiting_bytes,
        )
        self._inference = InferenceCalls(infer, parameters, self._over.is_set)

    def close(self) -> None:
        """Ends the threads that put, as soon as `put` returns."""
        self._pushes.close()

    def finish(self) -> None:
        """Answers every call with RUN_OVER from now on. Call it in the event loop."""
        self._over.set()
        self._grants.release()

    def num_acting(self) -> int:
        """Returns how many live actors do not wait for the learner's next update."""
        return self.sessions.num_present() - self._inference.num_held

    def actors(self) -> list[ActorView]:
        """Returns every actor that called in the last minutes, see `Sessions`; ordered by id."""
        return self.sessions.views()

    def last_refusal(self) -> str:
        """Returns which actor was refused last, and why; '' if none was in the last minute."""
        at_s, refusal = self._last_refusal
        return refusal if time.monotonic() - at_s < _WARN_AGAIN_S else ""

    @answering(impala_pb2.HandshakeRequest)
    async def Handshake(  # noqa: N802
        self, request: impala_pb2.HandshakeRequest, context: Any
    ) -> bytes:
        """Admits an actor that fits, if no other one that is alive has its name."""
        if self._over.is_set():
            self.sessions.mark_told(request.actor_id)
            return reply(impala_pb2.HandshakeReply, impala_pb2.RUN_OVER)
        host, certificate = callers.host(context), callers.name_in_certificate(context)
        problem = mismatches(request, self.run, self._pushes.specs)
        if certificate in self.revoked:
            problem = f"its certificate, {shown(certificate)}, was revoked"
        if not problem:
            problem = await self.sessions.admit(
                request.actor_id, request.session, request.num_environments, host, certificate
            )
        if problem:
            refusal = f"refused actor {shown(request.actor_id)} at {host}: {problem}"
            self._last_refusal = (time.monotonic(), refusal)
            self._warn(host, refusal)
            return reply(impala_pb2.HandshakeReply, impala_pb2.REFUSED, message=problem)
        session = self.sessions.get(request.actor_id, request.session)
        assert session is not None  # it was admitted a moment ago
        return reply(
            impala_pb2.HandshakeReply,
            impala_pb2.OK,
            run_id=self.run.run_id,
            parameter_specs=spec_messages(self._parameter_specs),
            run_steps=self._run_steps,
            restarts=session.restarts,
        )

    @answering(impala_pb2.AttendRequest)
    async def Attend(  # noqa: N802
        self, request: impala_pb2.AttendRequest, context: Any
    ) -> bytes:
        """Waits; an actor that is alive calls again when this returns."""
        session = self._session_of(request)
        try:
            await session.attend()
        except asyncio.CancelledError:  # its connection is closed
            self._grants.lost(session)
            raise
        return reply(impala_pb2.AttendReply, impala_pb2.OK)

    @answering(impala_pb2.ReportRequest)
    async def Report(  # noqa: N802
        self, request: impala_pb2.ReportRequest, context: Any
    ) -> bytes:
        """Notes what keeps an actor from acting."""
        session, trouble = self._session_of(request), shown(request.trouble, _LONGEST_TROUBLE)
        self.sessions.update(session, lambda view: view._replace(trouble=trouble))
        return reply(impala_pb2.ReportReply, impala_pb2.OK)

    @answering(impala_pb2.GetParametersRequest)
    async def GetParameters(  # noqa: N802
        self, request: impala_pb2.GetParametersRequest, context: Any
    ) -> bytes:
        """Sends the newest parameters, unless the actor has them. Waits until it may act."""
        session = None if self._over.is_set() else self._session_of(request)
        if session is not None and self._parameters.latest is None:
            raise CallError(grpc.StatusCode.UNAVAILABLE, "the learner has no parameters yet")
        may_act = session is not None and await self._grants.wait(session, request.sequence)
        if self._over.is_set():
            self.sessions.mark_told(request.actor_id)
            return reply(impala_pb2.GetParametersReply, impala_pb2.RUN_OVER)
        snapshot = self._parameters.latest
        if not may_act or snapshot is None:
            return reply(impala_pb2.GetParametersReply, impala_pb2.WAIT)
        # After a restart from a checkpoint, the learner's version may be the lower one.
        behind = snapshot.parameter_version - request.known_version
        if 0 <= behind < self._parameter_lag and request.known_version >= 0:
            return reply(impala_pb2.GetParametersReply, impala_pb2.UNCHANGED)
        return snapshot.reply(self._parameter_specs)

    @answering(impala_pb2.GetNetworkRequest)
    async def GetNetwork(  # noqa: N802
        self, request: impala_pb2.GetNetworkRequest, context: Any
    ) -> bytes:
        """Sends the network, for an actor that runs it without TensorFlow."""
        if self._over.is_set():
            self.sessions.mark_told(request.actor_id)
            return reply(impala_pb2.GetNetworkReply, impala_pb2.RUN_OVER)
        check_environments(request.num_environments, self._session_of(request).num_environments)
        try:
            if self._networks is None:
                raise NoNetwork("the learner was started with --acting=tensorflow")
            found = asyncio.wrap_future(self._networks(request.num_environments))
            # Shielded: other actors get the same network, also if this one is lost meanwhile.
            network = await asyncio.shield(found)
        except NoNetwork as error:
            return reply(impala_pb2.GetNetworkReply, impala_pb2.REFUSED, message=str(error))
        return reply(impala_pb2.GetNetworkReply, impala_pb2.OK, network=network)

    @answering(impala_pb2.InferRequest)
    async def Infer(  # noqa: N802
        self, request: impala_pb2.InferRequest, context: Any
    ) -> bytes:
        """Chooses actions for an actor's environments."""
        most = self._session_of(request).num_environments
        answer = await self._inference.answer(request, most)
        if answer is None:
            self.sessions.mark_told(request.actor_id)
            return reply(impala_pb2.InferReply, impala_pb2.RUN_OVER)
        return answer

    @answering(impala_pb2.PushUnrollRequest)
    async def PushUnroll(  # noqa: N802
        self, request: impala_pb2.PushUnrollRequest, context: Any
    ) -> bytes:
        """Puts an unroll into the queue, exactly once. Waits while the queue is full."""
        outcome, message = impala_pb2.RUN_OVER, ""
        if not self._over.is_set():
            outcome, message = await self._pushes.push(self._session_of(request), request)
        if outcome == impala_pb2.RUN_OVER:
            if not self._over.is_set():
                # Stopped before the run was over: the run may resume, so the actor retries.
                raise CallError(grpc.StatusCode.UNAVAILABLE, "the learner is stopping")
            self.sessions.mark_told(request.actor_id)
        return reply(impala_pb2.PushUnrollReply, outcome, message=message)

    def _session_of(
        self,
        request: impala_pb2.PushUnrollRequest
        | impala_pb2.GetParametersRequest
        | impala_pb2.GetNetworkRequest
        | impala_pb2.InferRequest
        | impala_pb2.AttendRequest
        | impala_pb2.ReportRequest,
    ) -> Session:
        session = self.sessions.get(request.actor_id, request.session)
        if session is None or request.run_id != self.run.run_id:
            raise CallError(grpc.StatusCode.FAILED_PRECONDITION, "handshake first")
        if session.certificate in self.revoked:  # a handshake tells the actor
            raise CallError(grpc.StatusCode.FAILED_PRECONDITION, "handshake first")
        return session

    def _warn(self, host: str, text: str) -> None:
        """Logs that a host was refused, now and then: it may try again and again."""
        now = time.monotonic()
        if now - self._warned_at.get(host, float("-inf")) < _WARN_AGAIN_S:
            return
        if len(self._warned_at) > 1000:
            self._warned_at.clear()
        self._warned_at[host] = now
        logger.warning("%s", text)
