"""The learner's side of the wire: who may push what, and that every unroll counts once."""

from __future__ import annotations

import functools
import logging
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import grpc

from impala_tf.transport import impala_pb2, impala_pb2_grpc
from impala_tf.transport.codec import NestCodec, TensorSpec
from impala_tf.transport.errors import DecodeError, QueueClosed
from impala_tf.transport.identity import RunIdentity, mismatches, spec_messages
from impala_tf.transport.options import PUSH_DEADLINE_S
from impala_tf.transport.parameters import ParameterStore
from impala_tf.types import Episode, Unroll

logger = logging.getLogger(__name__)

# An actor that has been silent for so long is shown no more: it may have been scaled away. Should
# it come back, it is known as before.
_SHOWN_S = 300.0


class PushReport(NamedTuple):
    """One push that was taken."""

    actor_id: str
    num_unrolls: int  # N
    parameter_version: int  # learner updates behind the parameters that acted
    episodes: list[Episode]  # finished since the actor's last push
    agent_steps_per_s: float  # as the actor measured it
    push_wait_fraction: float  # share of its time that the actor waited to push


class ActorView(NamedTuple):
    """What the learner knows of an actor, since the actor's process started."""

    actor_id: str
    host: str  # the address it connects from
    last_contact: float  # Unix time, seconds
    parameter_version: int = -1  # of its last push; -1: none yet
    agent_steps_per_s: float = 0.0
    push_wait_fraction: float = 0.0
    unrolls: int = 0  # taken
    told_run_over: bool = False


class _CallError(Exception):
    """Ends a call with this status."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class _Actor:
    """One incarnation of an actor."""

    def __init__(self, session: int, view: ActorView) -> None:
        self.session = session
        self.view = view
        self.turn = threading.Lock()  # held while a push is put: a retry waits for the first try
        self.last_sequence = -1  # taken; read and written in turn


def _answering(method: Callable[..., Any]) -> Callable[..., Any]:
    """Turns exceptions into statuses; what nobody foresaw is logged with its traceback."""

    @functools.wraps(method)
    def answer(self: LearnerService, request: Any, context: grpc.ServicerContext) -> Any:
        try:
            return method(self, request, context)
        except _CallError as error:
            code, message = error.code, str(error)
        except Exception:
            logger.exception("%s of actor %s failed", method.__name__, request.actor_id)
            code, message = grpc.StatusCode.INTERNAL, "the learner failed, see its log"
        return context.abort(code, message)  # raises

    return answer


class LearnerService(impala_pb2_grpc.LearnerServicer):
    """Answers the calls of all actors, each in a thread of its own."""

    def __init__(
        self,
        run: RunIdentity,
        put: Callable[[Unroll], None],
        parameters: ParameterStore,
        on_push: Callable[[PushReport], None] | None,
        max_waiting_pushes: int,
    ) -> None:
        self._run = run
        self._codec = NestCodec(run.unroll_specs)
        self._parameter_specs = [TensorSpec.of(*spec) for spec in run.parameter_specs]
        self._put = put
        self._parameters = parameters
        self._on_push = on_push
        self._push_slots = threading.BoundedSemaphore(max_waiting_pushes)
        self._over = threading.Event()
        self._lock = threading.Lock()  # of the actors' table and views
        self._actors: dict[str, _Actor] = {}

    def finish(self) -> None:
        """From now on every call is answered RUN_OVER."""
        self._over.set()

    def actors(self) -> list[ActorView]:
        """Returns what is known of every actor heard of in the last 5 min, ordered by id."""
        since = time.time() - _SHOWN_S
        with self._lock:
            views = [actor.view for actor in self._actors.values()]
        return sorted(view for view in views if view.last_contact > since)

    @_answering
    def Handshake(  # noqa: N802
        self, request: impala_pb2.HandshakeRequest, context: grpc.ServicerContext
    ) -> impala_pb2.HandshakeReply:
        """Admits an actor that fits, replacing an earlier incarnation of it."""
        if self._over.is_set():
            self._mark_told(request.actor_id)
            return impala_pb2.HandshakeReply(outcome=impala_pb2.RUN_OVER)
        host = _host(context.peer())
        problems = mismatches(request, self._run, self._codec.specs)
        if problems:
            message = "; ".join(problems)
            logger.warning("refused actor %s at %s: %s", request.actor_id, host, message)
            return impala_pb2.HandshakeReply(outcome=impala_pb2.REFUSED, message=message)
        self._admit(request.actor_id, request.session, host)
        return impala_pb2.HandshakeReply(
            outcome=impala_pb2.OK,
            run_id=self._run.run_id,
            parameter_specs=spec_messages(self._parameter_specs),
        )

    @_answering
    def GetParameters(  # noqa: N802
        self, request: impala_pb2.GetParametersRequest, context: grpc.ServicerContext
    ) -> impala_pb2.GetParametersReply:
        """Sends the newest parameters, unless the actor has them. Never waits."""
        if self._over.is_set():
            self._mark_told(request.actor_id)
            return impala_pb2.GetParametersReply(outcome=impala_pb2.RUN_OVER)
        self._actor_of(request)
        snapshot = self._parameters.newer_than(request.newer_than)
        if snapshot is None:
            return impala_pb2.GetParametersReply(outcome=impala_pb2.UNCHANGED)
        return snapshot.reply()

    @_answering
    def PushUnroll(  # noqa: N802
        self, request: impala_pb2.PushUnrollRequest, context: grpc.ServicerContext
    ) -> impala_pb2.PushUnrollReply:
        """Puts an unroll, once. Waits while the queue is full."""
        if self._over.is_set():
            self._mark_told(request.actor_id)
            return impala_pb2.PushUnrollReply(outcome=impala_pb2.RUN_OVER)
        actor = self._actor_of(request)
        with self._turn(actor, context):
            if request.sequence <= actor.last_sequence:
                return impala_pb2.PushUnrollReply(outcome=impala_pb2.DUPLICATE)
            try:
                self._take(actor, request)
            except QueueClosed as error:
                if not self._over.is_set():
                    # Stopped before the run was over: it may go on, and the actor waits for that.
                    raise _CallError(grpc.StatusCode.UNAVAILABLE, "the learner stops") from error
                self._mark_told(request.actor_id)
                return impala_pb2.PushUnrollReply(outcome=impala_pb2.RUN_OVER)
        return impala_pb2.PushUnrollReply(outcome=impala_pb2.OK)

    def _take(self, actor: _Actor, request: impala_pb2.PushUnrollRequest) -> None:
        try:
            unroll = self._codec.decode(request.num_environments, request.tensors)
        except DecodeError as error:
            raise _CallError(grpc.StatusCode.INVALID_ARGUMENT, str(error)) from error
        report = _report(request, unroll)
        self._put(unroll)
        actor.last_sequence = request.sequence
        with self._lock:
            actor.view = actor.view._replace(
                parameter_version=report.parameter_version,
                agent_steps_per_s=report.agent_steps_per_s,
                push_wait_fraction=report.push_wait_fraction,
                unrolls=actor.view.unrolls + report.num_unrolls,
            )
        if self._on_push is not None:
            self._on_push(report)

    @contextmanager
    def _turn(self, actor: _Actor, context: grpc.ServicerContext) -> Iterator[None]:
        """Waits for the actor's turn while the call lasts, keeping threads free for other calls."""
        if not self._push_slots.acquire(blocking=False):
            raise _CallError(grpc.StatusCode.UNAVAILABLE, "too many pushes wait for the learner")
        try:
            remaining = min(context.time_remaining(), PUSH_DEADLINE_S)  # endless where none is set
            if not actor.turn.acquire(timeout=remaining):
                raise _CallError(grpc.StatusCode.DEADLINE_EXCEEDED, "an earlier try still waits")
            try:
                yield
            finally:
                actor.turn.release()
        finally:
            self._push_slots.release()

    def _admit(self, actor_id: str, session: int, host: str) -> None:
        view = ActorView(actor_id, host, last_contact=time.time())
        with self._lock:
            known = self._actors.get(actor_id)
            if known is not None and known.session == session:
                return  # shook hands again: what it pushed stays counted
            self._actors[actor_id] = _Actor(session, view)
        logger.info("actor %s %s from %s", actor_id, "came back" if known else "joined", host)

    def _actor_of(
        self, request: impala_pb2.PushUnrollRequest | impala_pb2.GetParametersRequest
    ) -> _Actor:
        with self._lock:
            actor = self._actors.get(request.actor_id)
            if (
                actor is None
                or actor.session != request.session
                or request.run_id != self._run.run_id
            ):
                raise _CallError(grpc.StatusCode.FAILED_PRECONDITION, "handshake first")
            actor.view = actor.view._replace(last_contact=time.time())
            return actor

    def _mark_told(self, actor_id: str) -> None:
        with self._lock:
            actor = self._actors.get(actor_id)
            if actor is not None:
                actor.view = actor.view._replace(told_run_over=True, last_contact=time.time())


def _report(request: impala_pb2.PushUnrollRequest, unroll: Unroll) -> PushReport:
    returns, lengths = request.episode_returns, request.episode_lengths
    if len(returns) != len(lengths):
        raise _CallError(
            grpc.StatusCode.INVALID_ARGUMENT,
            f"episode_lengths: expected {len(returns)}, as of episode_returns, got {len(lengths)}",
        )
    return PushReport(
        actor_id=request.actor_id,
        num_unrolls=request.num_environments,
        parameter_version=int(unroll.parameter_version.max()),  # one actor acts with one version
        episodes=[Episode(*episode) for episode in zip(returns, lengths, strict=True)],
        agent_steps_per_s=request.agent_steps_per_s,
        push_wait_fraction=request.push_wait_fraction,
    )


def _host(peer: str) -> str:
    """Returns the host of gRPC's 'ipv4:10.0.0.2:5000' or 'ipv6:%5B::1%5D:5000'."""
    return urllib.parse.unquote(peer.partition(":")[2].rpartition(":")[0]).strip("[]")
