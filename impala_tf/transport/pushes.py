"""Puts pushed unrolls into the learner's queue, each exactly once."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from concurrent import futures
from typing import NamedTuple

import grpc

from impala_tf.config import memory_here
from impala_tf.transport import impala_pb2
from impala_tf.transport.calls import check_environments
from impala_tf.transport.codec import NestCodec
from impala_tf.transport.errors import (
    CallError,
    DecodeError,
    RefusedUnroll,
    StaleUnroll,
    kind_of,
)
from impala_tf.transport.grants import Grants
from impala_tf.transport.handshake import RunTerms
from impala_tf.transport.sessions import Session, Sessions
from impala_tf.types import ActorReport, Episode, Nest

logger = logging.getLogger(__name__)

# Threads that decode unrolls and wait for room in the queue. Other pushes wait for a free thread:
# certificates take turns, and the pushes of one are in order.
_WORKERS = 8
# The share of the memory here for waiting pushes. Pushes beyond it are told to retry.
_WAITING_SHARE = 0.25


class PushReport(NamedTuple):
    """The metadata of a push."""

    actor_name: str
    num_unrolls: int  # N
    parameter_version: int  # of the parameters that chose the actions
    episodes: list[Episode]  # finished since the actor's last push
    actor: ActorReport


class Pushes:
    """Decodes pushes and puts them into the queue, in its own threads.

    Args:
      terms: what actors must agree with.
      put: takes unrolls, read-only NumPy arrays [N, ...], and their metadata. Called from several
        threads. It blocks while the queue is full, which makes the actor wait. It raises
        QueueClosed when the learner takes no more unrolls: the actor retries later or, after the
        run, exits. It raises RefusedUnroll if the learner does not train on them, and StaleUnroll
        if the learner accepts only newer parameters: the actor gets the reason.
      on_refused: called with the number of unrolls of every refused push.
      grants: limits how many unrolls are made at once; None: no limit.
      most_waiting_bytes: the total size of the unrolls that may wait for room in the queue. Pushes
        beyond that are told to retry. None: a quarter of the machine's or container's memory.

    Attributes:
      terms, grants: as given.
      sessions: the actors' sessions.
      codec: decodes what is pushed.
    """

    def __init__(
        self,
        terms: RunTerms,
        put: Callable[[Nest, PushReport], None],
        on_refused: Callable[[int], None] = lambda num_unrolls: None,
        grants: Grants | None = None,
        most_waiting_bytes: int | None = None,
    ) -> None:
        self.terms = terms
        self.grants = grants or Grants()
        self.sessions = Sessions()
        self.codec = NestCodec(terms.sent_specs)
        self._put = put
        self._on_refused = on_refused
        self._workers = futures.ThreadPoolExecutor(_WORKERS, thread_name_prefix="put")
        self._most_waiting_bytes = most_waiting_bytes or int(_WAITING_SHARE * memory_here())
        self._waiting_bytes = 0
        self._num_pushing: Counter[str] = Counter()  # by certificate
        self._num_free = _WORKERS
        self._turns: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    def close(self) -> None:
        """Stops the threads once `put` returns."""
        self._workers.shutdown(wait=False)

    async def push(
        self, session: Session, request: impala_pb2.PushUnrollRequest
    ) -> impala_pb2.PushUnrollReply:
        """Puts an unroll into the queue. Waits while the queue is full.

        Raises:
          QueueClosed: the learner takes no more unrolls.
          CallError: the request is invalid, or should be retried later.
        """
        if session.pushing is not None:
            await self._wait_for_first_try(session, request)
        if request.sequence <= session.last_sequence:
            return impala_pb2.PushUnrollReply(outcome=impala_pb2.DUPLICATE)
        try:
            await self._put_in_worker(session, request)
        except RefusedUnroll as refused:
            return impala_pb2.PushUnrollReply(outcome=impala_pb2.REFUSED, message=str(refused))
        except StaleUnroll as stale:
            return impala_pb2.PushUnrollReply(outcome=impala_pb2.STALE, message=str(stale))
        return impala_pb2.PushUnrollReply(outcome=impala_pb2.OK)

    async def _wait_for_first_try(
        self, session: Session, request: impala_pb2.PushUnrollRequest
    ) -> None:
        request.ClearField("tensors")  # saves memory: the first try holds the same tensors
        while session.pushing is not None:
            await asyncio.wait([session.pushing])
        if request.sequence > session.last_sequence:
            raise CallError(grpc.StatusCode.UNAVAILABLE, "the first try failed; try again")

    async def _put_in_worker(self, session: Session, request: impala_pb2.PushUnrollRequest) -> None:
        """Puts an unroll. If the call is cancelled, the push continues and a retry waits for it."""
        unrolls = min(request.num_environments, session.num_environments)
        size = max(request.ByteSize(), unrolls * self.codec.nbytes)
        certificate = session.certificate
        is_full = self._waiting_bytes + size > self._most_waiting_bytes
        if is_full and self._num_pushing[certificate]:
            raise CallError(
                grpc.StatusCode.UNAVAILABLE, "too many pushes are waiting for the learner"
            )
        self._waiting_bytes += size
        self._num_pushing[certificate] += 1
        self.grants.arrived(session, request.sequence)
        job = asyncio.ensure_future(self._put_in_turn(session, request))
        session.pushing = job

        def done(job: asyncio.Future[None]) -> None:
            session.pushing = None
            self._waiting_bytes -= size
            self._num_pushing[certificate] -= 1
            # `exception` also keeps asyncio from logging that it was never retrieved.
            is_put = not job.cancelled() and job.exception() is None
            self.grants.ended(session, request.sequence, is_put, request.blocked_s)

        job.add_done_callback(done)
        await asyncio.shield(job)

    async def _put_in_turn(self, session: Session, request: impala_pb2.PushUnrollRequest) -> None:
        loop = asyncio.get_running_loop()
        if self._num_free:
            self._num_free -= 1
        else:
            turn = loop.create_future()
            self._turns.setdefault(session.certificate, deque()).append(turn)
            await turn
        try:
            await loop.run_in_executor(self._workers, self._put_unroll, session, request)
        finally:
            self._give_turn()

    def _give_turn(self) -> None:
        if not self._turns:
            self._num_free += 1
            return
        certificate, waiting = self._turns.popitem(last=False)
        waiting.popleft().set_result(None)
        if waiting:
            self._turns[certificate] = waiting  # after all others

    def _put_unroll(self, session: Session, request: impala_pb2.PushUnrollRequest) -> None:
        """Decodes an unroll and puts it into the queue, in a worker; then counts its number."""
        try:
            sent = self._decode(session, request)
            check_numbers(request, self.terms)
            report = _report(request, sent, self.terms.num_infos)
            self._put(sent, report)
        except RefusedUnroll as refused:
            self._count_refusal(session, request, str(refused))
            raise
        except StaleUnroll:
            self._count(session, request, report)
            raise
        self._count(session, request, report)

    def _decode(self, session: Session, request: impala_pb2.PushUnrollRequest) -> Nest:
        check_environments(request.num_environments, session.num_environments)
        try:
            return self.codec.decode(request.num_environments, request.tensors)
        except DecodeError as error:
            raise CallError(grpc.StatusCode.INVALID_ARGUMENT, str(error)) from error

    def _count(
        self, session: Session, request: impala_pb2.PushUnrollRequest, report: PushReport
    ) -> None:
        session.last_sequence = request.sequence
        self.sessions.update(
            session,
            parameter_version=report.parameter_version,
            report=report.actor,
            trouble="",
        )

    def _count_refusal(
        self, session: Session, request: impala_pb2.PushUnrollRequest, reason: str
    ) -> None:
        session.last_sequence = request.sequence
        self.sessions.update(session, trouble=f"its unrolls are refused: {reason}")
        self._on_refused(request.num_environments)
        if session.last_refusal != kind_of(reason):
            session.last_refusal = kind_of(reason)
            logger.warning("%s: an unroll was refused: %s", request.actor_id, reason)


def check_numbers(request: impala_pb2.PushUnrollRequest, terms: RunTerms) -> None:
    """Checks an actor's episodes and report.

    Raises:
      CallError: the lengths of the lists are invalid.
      RefusedUnroll: a number is invalid, which a broken environment may cause.
    """
    returns, lengths = request.episode_returns, request.episode_lengths
    levels = request.episode_levels
    for name, per_episode in (
        ("episode_lengths", 1),
        ("episode_levels", 1),
        ("episode_infos", terms.num_infos),
    ):
        count = len(getattr(request, name))
        if count != per_episode * len(returns):
            raise CallError(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"{name}: expected {per_episode} for each of {len(returns)} episode_returns, got"
                f" {count}",
            )
    most = terms.most_episodes * request.num_environments
    if len(returns) > most:
        raise CallError(
            grpc.StatusCode.INVALID_ARGUMENT,
            f"episode_returns: expected {most} at most in one unroll, got {len(returns)}",
        )
    if levels and not 0 <= min(levels) <= max(levels) < terms.num_levels:
        raise RefusedUnroll(
            f"episodes: levels from {min(levels)} to {max(levels)}, but there are"
            f" {terms.num_levels}"
        )
    rates = (request.agent_steps_per_s, request.environment_fraction, request.inference_fraction,
             request.push_wait_fraction, request.memory_mb, request.blocked_s)  # fmt: skip
    if not all(map(math.isfinite, (*returns, *rates))) or min(lengths, default=0) < 0:
        raise RefusedUnroll("episodes: a return that is NaN or infinite, or a negative length")


def _report(request: impala_pb2.PushUnrollRequest, sent: Nest, num_infos: int) -> PushReport:
    values = [value if math.isfinite(value) else None for value in request.episode_infos]
    infos = [
        tuple(values[n * num_infos : (n + 1) * num_infos])
        for n in range(len(request.episode_returns))
    ]
    games = zip(
        request.episode_returns,
        request.episode_lengths,
        request.episode_levels,
        infos,
        strict=True,
    )
    return PushReport(
        actor_name=request.actor_id,
        num_unrolls=request.num_environments,
        parameter_version=int(sent.parameter_version.max()),  # all environments have the same
        episodes=[
            Episode(score, length, level=level, info=info) for score, length, level, info in games
        ],
        actor=ActorReport(*(getattr(request, name) for name in ActorReport._fields)),
    )
