"""Puts pushed unrolls into the learner's queue, each exactly once."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from concurrent import futures

import grpc

from impala_tf.config import memory_here
from impala_tf.transport import impala_pb2
from impala_tf.transport.codec import NestCodec
from impala_tf.transport.failures import (
    DecodeError,
    RefusedUnroll,
    StaleUnroll,
    StreamError,
)
from impala_tf.transport.grants import Grants
from impala_tf.transport.sessions import Session, Sessions
from impala_tf.transport.wire import PART_BYTES, RunTerms
from impala_tf.types import ActorReport, Episode, Nest

logger = logging.getLogger(__name__)

# Threads that decode unrolls and wait for room in the queue. Other pushes wait for a free thread:
# certificates take turns, and the pushes of one are in order.
_WORKERS = 8
# The share of the memory here for waiting pushes. Pushes beyond it are told to retry.
_WAITING_SHARE = 0.25


Put = Callable[[Nest, str, list[Episode], ActorReport], None]
"""Takes unrolls, read-only NumPy arrays [N, ...], the actor's name, the episodes that have finished
since its last push, and its report.

Called from several threads. It blocks while the queue is full, which makes the actor wait. It
raises QueueClosed when the learner takes no more unrolls: the actor retries later or, after the
run, exits. It raises RefusedUnroll if the learner does not train on them, and StaleUnroll if the
learner accepts only newer parameters: the actor gets the reason."""


class Pushes:
    """Decodes pushes and puts them into the queue, in its own threads.

    Args:
      terms: what actors must agree with.
      put: takes what was pushed.
      on_refused: called with the number of unrolls of every refused push.
      grants: limits how many unrolls are made at once; None: no limit.
      most_waiting_bytes: the total size of the unrolls that may wait for room in the queue. Pushes
        beyond that are told to retry. None: a quarter of the machine's or container's memory.

    Attributes:
      terms, grants: as given.
      sessions: the actors' sessions.
      codec: decodes what is pushed.
      most_bytes: the size of the largest push that the terms allow, with its episodes.
    """

    def __init__(
        self,
        terms: RunTerms,
        put: Put,
        on_refused: Callable[[int], None] = lambda num_unrolls: None,
        grants: Grants | None = None,
        most_waiting_bytes: int | None = None,
    ) -> None:
        self.terms = terms
        self.grants = grants or Grants()
        self.sessions = Sessions()
        self.codec = NestCodec(terms.sent_specs)
        self.most_bytes = int(1.1 * terms.max_environments * self.codec.nbytes) + PART_BYTES
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

    async def push(self, session: Session, request: impala_pb2.PushRequest) -> impala_pb2.PushReply:
        """Puts an unroll into the queue, exactly once. Waits while the queue is full.

        Raises:
          QueueClosed: the learner takes no more unrolls.
          StreamError: the request is invalid, or should be retried later.
        """
        if session.pushing is not None:  # the stream was broken; this is the actor's next one
            request.ClearField("tensors")  # saves memory: the first try holds the same tensors
            while session.pushing is not None:
                await asyncio.wait([session.pushing])
            if request.sequence > session.last_sequence:
                raise StreamError("the first try failed; try again", grpc.StatusCode.UNAVAILABLE)
        if request.sequence <= session.last_sequence:
            return impala_pb2.PushReply(duplicate=True)
        unrolls = min(request.num_environments, session.num_environments)
        size = max(request.ByteSize(), unrolls * self.codec.nbytes)
        is_full = self._waiting_bytes + size > self._most_waiting_bytes
        if is_full and self._num_pushing[session.certificate]:
            raise StreamError(
                "too many pushes are waiting for the learner", grpc.StatusCode.UNAVAILABLE
            )
        self._waiting_bytes += size
        self._num_pushing[session.certificate] += 1
        self.grants.arrived(session, request.sequence)
        session.pushing = asyncio.ensure_future(self._put_in_turn(session, request, size))
        # Else asyncio logs the error of a push whose stream has ended, as at the end of each run.
        session.pushing.add_done_callback(lambda job: job.cancelled() or job.exception())
        try:
            # If the stream breaks, the push continues, and the actor's next one waits for it.
            await asyncio.shield(session.pushing)
        except (RefusedUnroll, StaleUnroll) as unused:
            return impala_pb2.PushReply(unused=str(unused))
        return impala_pb2.PushReply()

    async def _put_in_turn(
        self, session: Session, request: impala_pb2.PushRequest, size: int
    ) -> None:
        loop, is_put = asyncio.get_running_loop(), False
        try:
            if self._num_free:
                self._num_free -= 1
            else:
                turn = loop.create_future()
                self._turns.setdefault(session.certificate, deque()).append(turn)
                await turn
            try:
                await loop.run_in_executor(self._workers, self._put_unroll, session, request)
                is_put = True
            finally:
                self._give_turn()
        finally:
            session.pushing = None
            session.note_contact()
            self._waiting_bytes -= size
            self._num_pushing[session.certificate] -= 1
            self.grants.ended(session, request.sequence, is_put, request.blocked_s)

    def _give_turn(self) -> None:
        if not self._turns:
            self._num_free += 1
            return
        certificate, waiting = self._turns.popitem(last=False)
        waiting.popleft().set_result(None)
        if waiting:
            self._turns[certificate] = waiting  # after all others

    def _put_unroll(self, session: Session, request: impala_pb2.PushRequest) -> None:
        """Decodes an unroll and puts it into the queue, in a worker; then counts its number."""
        check_environments(request.num_environments, session.num_environments)
        try:
            sent = self.codec.decode(request.num_environments, request.tensors)
            check_numbers(request, self.terms)
            report = _read_actor_report(request)
            version = int(sent.parameter_version.max())  # all environments have the same
            self._put(sent, session.actor_id, _episodes(request, self.terms.num_infos), report)
        except DecodeError as error:
            raise StreamError(str(error)) from error
        except RefusedUnroll as refused:
            if not session.trouble:  # the first of several
                logger.warning("%s: an unroll was refused: %s", session.actor_id, refused)
            session.last_sequence = request.sequence
            session.trouble = f"its unrolls are refused: {refused}"
            self._on_refused(request.num_environments)
            raise
        except StaleUnroll:
            session.count(request.sequence, version, report)
            raise
        session.count(request.sequence, version, report)


def check_environments(num_environments: int, most: int) -> None:
    """Raises StreamError if a request is for no environment, or for more than were agreed on."""
    if not 1 <= num_environments <= most:
        raise StreamError(f"num_environments: expected 1 to {most}, got {num_environments}")


def check_numbers(request: impala_pb2.PushRequest, terms: RunTerms) -> None:
    """Checks an actor's episodes and report.

    Raises:
      StreamError: the lengths of the lists are invalid.
      RefusedUnroll: a number is invalid, which a broken environment may cause.
    """
    returns, levels = request.episode_returns, request.episode_levels
    most = terms.most_episodes * request.num_environments
    if len(returns) > most:
        raise StreamError(f"episode_returns: expected {most} at most, got {len(returns)}")
    for name, each in (("lengths", 1), ("levels", 1), ("infos", terms.num_infos)):
        count = len(getattr(request, f"episode_{name}"))
        if count != each * len(returns):
            raise StreamError(
                f"episode_{name}: expected {each} for each of {len(returns)} episode_returns, got"
                f" {count}"
            )
    if levels and not 0 <= min(levels) <= max(levels) < terms.num_levels:
        raise RefusedUnroll(
            f"episodes: levels from {min(levels)} to {max(levels)}, but there are"
            f" {terms.num_levels}"
        )
    numbers = (*returns, request.blocked_s, *_read_actor_report(request))
    if not all(map(math.isfinite, numbers)) or min(request.episode_lengths, default=0) < 0:
        raise RefusedUnroll("episodes: a return that is NaN or infinite, or a negative length")


def _read_actor_report(request: impala_pb2.PushRequest) -> ActorReport:
    return ActorReport(*(getattr(request, name) for name in ActorReport._fields))


def _episodes(request: impala_pb2.PushRequest, num_infos: int) -> list[Episode]:
    infos = [value if math.isfinite(value) else None for value in request.episode_infos]
    games = zip(
        request.episode_returns, request.episode_lengths, request.episode_levels, strict=True
    )
    return [
        Episode(score, length, level=level, info=tuple(infos[n * num_infos : (n + 1) * num_infos]))
        for n, (score, length, level) in enumerate(games)
    ]
