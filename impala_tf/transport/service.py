"""The learner's side of the transport: admits actors, and counts every unroll exactly once."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Container
from concurrent.futures import Executor, Future
from typing import Any, NamedTuple

import grpc

from impala_tf.transport import callers, impala_pb2
from impala_tf.transport.calls import answering, check_environments, reply
from impala_tf.transport.codec import NestCodec, TensorSpec
from impala_tf.transport.errors import (
    DecodeError,
    NoNetwork,
    QueueClosed,
    RefusedUnroll,
    StaleUnroll,
)
from impala_tf.transport.grants import Grants
from impala_tf.transport.handshake import RunIdentity, mismatches, shown, spec_messages
from impala_tf.transport.inference import Infer, InferenceCalls
from impala_tf.transport.parameter_store import ParameterStore
from impala_tf.transport.push_checks import CallError, check_numbers
from impala_tf.transport.sessions import ActorView, Session, Sessions
from impala_tf.types import ActorReport, Episode, Sent

logger = logging.getLogger(__name__)

Networks = Callable[[int], "Future[bytes]"]
"""Converts the network for N environments, for `litert.ActingModel`. May fail with NoNetwork."""

_WARN_AGAIN_S = 60.0
_LONGEST_TROUBLE = 400


class PushReport(NamedTuple):
    """One push that was accepted, or stale."""

    actor_id: str
    num_unrolls: int  # N
    parameter_version: int  # of the parameters that acted
    episodes: list[Episode]  # finished since the actor's last push
    about: ActorReport
    push_wait_fraction: float  # fraction of its time that the actor waited for the learner
    memory_mb: float  # the actor's peak so far, in MiB; 0: unknown


class LearnerService:
    """Answers the calls of all actors, in the event loop of the server.

    Requests and replies are bytes: parameters, the same for all actors, are encoded only once.

    Args:
      run: what actors must agree with.
      put: takes a decoded unroll, see `LearnerServer`.
      parameters: where the learner publishes.
      workers: run `put`, which may wait.
      max_waiting_bytes: of pushes that wait for room in the queue.
      parameter_lag: parameters that are fewer updates old than this are new enough for an actor.
      revoked: the names in certificates that are refused; may change.
      on_push: called for every push that was put, by the workers.
      on_refused: called with the number of unrolls that were refused.
      infer: chooses actions for actors; None: they do it themselves.
      networks: converts the network for actors, see `errors.NoNetwork`; None: they have their own.
      least_grants: so many unrolls may always be in the making; None: any number.
      run_steps: agent steps that the run has; the actors are told.
      on_stale: called for every push that was stale, by the workers.
    """

    def __init__(
        self,
        run: RunIdentity,
        put: Callable[[Any], None],
        parameters: ParameterStore,
        workers: Executor,
        max_waiting_bytes: int,
        parameter_lag: int = 1,
        revoked: Container[str] = (),
        on_push: Callable[[PushReport], None] | None = None,
        on_refused: Callable[[int], None] | None = None,
        infer: Infer | None = None,
        networks: Networks | None = None,
        least_grants: int | None = None,
        run_steps: int = 0,
        on_stale: Callable[[PushReport], None] | None = None,
    ) -> None:
        self._run = run
        self._run_steps = run_steps
        self._codec = NestCodec(run.unroll_specs)
        self._parameter_specs = [TensorSpec.of(*spec) for spec in run.parameter_specs]
        self._put = put
        self._parameters = parameters
        self._workers = workers
        self._max_waiting_bytes = max_waiting_bytes
        self._waiting_bytes = 0
        self._parameter_lag = parameter_lag
        self._revoked = revoked
        self._on_push = on_push
        self._on_refused = on_refused
        self._on_stale = on_stale
        self._networks = networks
        self._over = threading.Event()
        self._grants = Grants(least_grants)
        self._warned_at: dict[str, float] = {}
        self._last_refusal = (float("-inf"), "")
        self.sessions = Sessions()
        self._inference = InferenceCalls(infer, parameters, self._over.is_set)

    def finish(self) -> None:
        """Answers every call with RUN_OVER from now on. Call it in the event loop."""
        self._over.set()
        self._grants.release()

    def num_acting(self) -> int:
        """Returns how many live actors do not wait for the learner's next update."""
        return self.sessions.num_present() - self._inference.num_held

    def actors(self) -> list[ActorView]:
        """Returns every actor that called in the last 5 minutes, ordered by id."""
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
        problem = mismatches(request, self._run, self._codec.specs)
        if certificate in self._revoked:
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
            run_id=self._run.run_id,
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
        """Puts an unroll into the queue, exactly once. Waits while the queue is full.

        A retry asks first, without the unroll: a push that waited for longer than its deadline is
        here, and one for which there was no room need not be sent before there is.
        """
        if self._over.is_set():
            self.sessions.mark_told(request.actor_id)
            return reply(impala_pb2.PushUnrollReply, impala_pb2.RUN_OVER)
        session = self._session_of(request)
        if session.pushing is not None:
            await self._wait_for_first_try(session, request)
        if request.sequence <= session.last_sequence:
            return reply(impala_pb2.PushUnrollReply, impala_pb2.DUPLICATE)
        if request.asks:
            self._check_room(self._size(session, request))
            return reply(impala_pb2.PushUnrollReply, impala_pb2.SEND)
        try:
            await self._put_in_worker(session, request)
        except RefusedUnroll as refused:
            return reply(impala_pb2.PushUnrollReply, impala_pb2.REFUSED, message=str(refused))
        except StaleUnroll as stale:
            return reply(impala_pb2.PushUnrollReply, impala_pb2.STALE, message=str(stale))
        except QueueClosed as error:
            if not self._over.is_set():
                # Stopped before the run was over: the run may resume, so the actor retries.
                raise CallError(grpc.StatusCode.UNAVAILABLE, "the learner is stopping") from error
            self.sessions.mark_told(request.actor_id)
            return reply(impala_pb2.PushUnrollReply, impala_pb2.RUN_OVER)
        return reply(impala_pb2.PushUnrollReply, impala_pb2.OK)

    async def _wait_for_first_try(
        self, session: Session, request: impala_pb2.PushUnrollRequest
    ) -> None:
        request.ClearField("tensors")  # which are in memory already: a retry has the same ones
        while session.pushing is not None:
            await asyncio.wait([session.pushing])
        if request.sequence > session.last_sequence:
            raise CallError(grpc.StatusCode.UNAVAILABLE, "the first try failed; try again")

    async def _put_in_worker(self, session: Session, request: impala_pb2.PushUnrollRequest) -> None:
        """Puts an unroll. If the call is cancelled, the push goes on: a retry waits for it."""
        size = self._size(session, request)
        self._check_room(size)
        loop = asyncio.get_running_loop()
        self._waiting_bytes += size
        self._grants.arrived(session, request.sequence)
        job = loop.run_in_executor(self._workers, self._put_unroll, session, request)
        session.pushing = job

        def done(job: asyncio.Future[None]) -> None:
            session.pushing = None
            self._waiting_bytes -= size
            # Asking for the exception also keeps asyncio from complaining that nobody did.
            is_put = not job.cancelled() and job.exception() is None
            self._grants.ended(session, request.sequence, is_put, request.blocked_s)

        job.add_done_callback(done)
        await asyncio.shield(job)

    def _size(self, session: Session, request: impala_pb2.PushUnrollRequest) -> int:
        """Returns the bytes that a push needs once it is decompressed."""
        unrolls = min(request.num_environments, session.num_environments)
        return max(request.ByteSize(), unrolls * self._codec.nbytes)

    def _check_room(self, size: int) -> None:
        if self._waiting_bytes + size > self._max_waiting_bytes:
            raise CallError(
                grpc.StatusCode.UNAVAILABLE, "too many pushes are waiting for the learner"
            )

    def _put_unroll(self, session: Session, request: impala_pb2.PushUnrollRequest) -> None:
        try:
            unroll = self._decode(session, request)
            report = self._report(request, unroll)
            self._put(unroll)
        except RefusedUnroll as refused:
            self._count_refusal(session, request, str(refused))
            raise
        except StaleUnroll:
            self._count(session, request, report, stale=report.num_unrolls)
            if self._on_stale is not None:
                self._on_stale(report)
            raise
        self._count(session, request, report, unrolls=report.num_unrolls)
        if self._on_push is not None:
            self._on_push(report)

    def _count(
        self,
        session: Session,
        request: impala_pb2.PushUnrollRequest,
        report: PushReport,
        unrolls: int = 0,
        stale: int = 0,
    ) -> None:
        session.last_sequence = request.sequence
        self.sessions.update(
            session,
            lambda view: view._replace(
                parameter_version=report.parameter_version,
                about=report.about,
                push_wait_fraction=report.push_wait_fraction,
                memory_mb=report.memory_mb,
                trouble="",
                unrolls=view.unrolls + unrolls,
                stale=view.stale + stale,
            ),
        )

    def _decode(self, session: Session, request: impala_pb2.PushUnrollRequest) -> Sent:
        if request.num_environments > session.num_environments:
            raise CallError(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"num_environments: the handshake said at most {session.num_environments}, got"
                f" {request.num_environments}",
            )
        try:
            unroll: Sent = self._codec.decode(request.num_environments, request.tensors)
        except DecodeError as error:
            raise CallError(grpc.StatusCode.INVALID_ARGUMENT, str(error)) from error
        return unroll

    def _report(self, request: impala_pb2.PushUnrollRequest, unroll: Sent) -> PushReport:
        check_numbers(request, self._run.most_episodes, self._run.num_levels)
        return PushReport(
            actor_id=request.actor_id,
            num_unrolls=request.num_environments,
            # An unroll's environments all use one version.
            parameter_version=int(unroll.parameter_version.max()),
            episodes=[
                Episode(each, length, level=level)
                for each, length, level in zip(
                    request.episode_returns,
                    request.episode_lengths,
                    request.episode_levels,
                    strict=True,
                )
            ],
            about=ActorReport(*(getattr(request, name) for name in ActorReport._fields)),
            push_wait_fraction=request.push_wait_fraction,
            memory_mb=request.memory_mb,
        )

    def _count_refusal(
        self, session: Session, request: impala_pb2.PushUnrollRequest, reason: str
    ) -> None:
        session.last_sequence = request.sequence
        before = session.view
        self.sessions.update(
            session,
            lambda view: view._replace(
                refused=view.refused + request.num_environments, last_refusal=reason
            ),
        )
        if self._on_refused is not None:
            self._on_refused(request.num_environments)
        if before.refused == 0 or before.last_refusal != reason:
            logger.warning("%s: an unroll was refused: %s", request.actor_id, reason)

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
        if session is None or request.run_id != self._run.run_id:
            raise CallError(grpc.StatusCode.FAILED_PRECONDITION, "handshake first")
        if session.certificate in self._revoked:  # a handshake tells the actor
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
