"""Pushed unrolls on their way into the learner's queue, each exactly once."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from concurrent import futures
from typing import Any, NamedTuple

import grpc

from impala_tf.transport import impala_pb2
from impala_tf.transport.codec import NestCodec, TensorSpec
from impala_tf.transport.errors import DecodeError, QueueClosed, RefusedUnroll, StaleUnroll
from impala_tf.transport.grants import Grants
from impala_tf.transport.handshake import RunIdentity
from impala_tf.transport.push_checks import CallError, check_numbers
from impala_tf.transport.sessions import Session, Sessions
from impala_tf.types import ActorReport, Episode, Sent

logger = logging.getLogger(__name__)

# Decode unrolls and wait for room in the queue; the other pushes wait for them, in their order.
_WORKERS = 8
# Of the machine's memory, for pushes that wait. Pushes beyond it are told to retry.
_WAITING_SHARE = 0.25

Answer = tuple[impala_pb2.Outcome, str]


class PushReport(NamedTuple):
    """One push that was accepted, or stale."""

    actor_id: str
    num_unrolls: int  # N
    parameter_version: int  # of the parameters that acted
    episodes: list[Episode]  # finished since the actor's last push
    about: ActorReport
    push_wait_fraction: float  # fraction of its time that the actor waited for the learner
    memory_mb: float  # the actor's peak so far, in MiB; 0: unknown


class Pushes:
    """Decodes pushes and puts them into the queue, in threads of its own.

    Arguments as of `LearnerService`; `sessions` and `grants` are the service's.

    Attributes:
      specs: of the tensors of an unroll.
    """

    def __init__(
        self,
        run: RunIdentity,
        put: Callable[[Any], None],
        sessions: Sessions,
        grants: Grants,
        on_push: Callable[[PushReport], None] | None,
        on_refused: Callable[[int], None] | None,
        on_stale: Callable[[PushReport], None] | None,
        most_waiting_bytes: int | None,
    ) -> None:
        self._run = run
        self._put = put
        self._sessions = sessions
        self._grants = grants
        self._on_push = on_push
        self._on_refused = on_refused
        self._on_stale = on_stale
        self._codec = NestCodec(run.unroll_specs)
        self._workers = futures.ThreadPoolExecutor(_WORKERS, thread_name_prefix="put")
        self._most_waiting_bytes = most_waiting_bytes or _share_of_memory()
        self._waiting_bytes = 0

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        """Of the tensors of an unroll."""
        return self._codec.specs

    def close(self) -> None:
        """Ends the threads, as soon as `put` returns."""
        self._workers.shutdown(wait=False)

    async def push(self, session: Session, request: impala_pb2.PushUnrollRequest) -> Answer:
        """Puts an unroll into the queue. Waits while the queue is full.

        A retry asks first, without the unroll: a push that waited for longer than its deadline is
        here, and one for which there was no room need not be sent before there is.

        Returns:
          the outcome and a message. RUN_OVER: the queue is closed.
        """
        if session.pushing is not None:
            await self._wait_for_first_try(session, request)
        if request.sequence <= session.last_sequence:
            return impala_pb2.DUPLICATE, ""
        if request.asks:
            self._check_room(self._size(session, request))
            return impala_pb2.SEND, ""
        try:
            await self._put_in_worker(session, request)
        except RefusedUnroll as refused:
            return impala_pb2.REFUSED, str(refused)
        except StaleUnroll as stale:
            return impala_pb2.STALE, str(stale)
        except QueueClosed:
            return impala_pb2.RUN_OVER, ""
        return impala_pb2.OK, ""

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
        if self._waiting_bytes + size > self._most_waiting_bytes:
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
        self._sessions.update(
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
        self._sessions.update(
            session,
            lambda view: view._replace(
                refused=view.refused + request.num_environments, last_refusal=reason
            ),
        )
        if self._on_refused is not None:
            self._on_refused(request.num_environments)
        if before.refused == 0 or before.last_refusal != reason:
            logger.warning("%s: an unroll was refused: %s", request.actor_id, reason)


def _share_of_memory() -> int:
    return int(_WAITING_SHARE * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
