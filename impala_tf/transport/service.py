"""The learner's side of the transport: admits actors, and counts every unroll exactly once."""

from __future__ import annotations

import functools
import logging
import math
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import grpc

from impala_tf.transport import impala_pb2, impala_pb2_grpc
from impala_tf.transport.codec import NestCodec, TensorSpec
from impala_tf.transport.errors import DecodeError, QueueClosed, RefusedUnroll
from impala_tf.transport.grpc_options import PUSH_DEADLINE_S
from impala_tf.transport.handshake import RunIdentity, mismatches, spec_messages
from impala_tf.transport.parameter_store import ParameterStore
from impala_tf.types import Episode, Unroll

logger = logging.getLogger(__name__)

# An actor without contact for this long is hidden (perhaps scaled down) and reappears when it
# reconnects.
_SHOWN_S = 300.0


class PushReport(NamedTuple):
    """One accepted push."""

    actor_id: str
    num_unrolls: int  # N
    parameter_version: int  # of the parameters that acted
    episodes: list[Episode]  # finished since the actor's last push
    agent_steps_per_s: float  # as the actor measured it
    push_wait_fraction: float  # fraction of its time that the actor waited to push
    memory_mb: float  # the actor's peak so far, in MiB; 0: unknown


class ActorView(NamedTuple):
    """What the learner knows about an actor, since the actor's process started."""

    actor_id: str
    host: str  # the address it connects from
    last_contact: float  # seconds of the monotonic clock
    parameter_version: int = -1  # of its last push; -1: none yet
    agent_steps_per_s: float = 0.0
    push_wait_fraction: float = 0.0
    memory_mb: float = 0.0  # its peak so far, in MiB; 0: unknown
    unrolls: int = 0  # accepted
    refused: int = 0  # unrolls that were not trained on
    last_refusal: str = ""  # why the last of them was refused
    told_run_over: bool = False


class _CallError(Exception):
    """Ends a call with a gRPC status."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class _Actor:
    """One session of an actor: a restarted actor process has a new one."""

    def __init__(self, session: int, view: ActorView) -> None:
        self.session = session
        self.view = view
        self.push_lock = threading.Lock()  # held during a push: a retry waits for the first try
        self.last_sequence = -1  # of the last accepted push; guarded by push_lock


def _answering(method: Callable[..., Any]) -> Callable[..., Any]:
    """Turns exceptions into gRPC statuses; logs unexpected ones with their traceback."""

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
    """Answers the calls of all actors; each call has its own thread."""

    def __init__(
        self,
        run: RunIdentity,
        put: Callable[[Unroll], None],
        parameters: ParameterStore,
        on_push: Callable[[PushReport], None] | None,
        max_waiting_pushes: int,
        on_refused: Callable[[int], None] | None = None,
    ) -> None:
        self._run = run
        self._codec = NestCodec(run.unroll_specs)
        self._parameter_specs = [TensorSpec.of(*spec) for spec in run.parameter_specs]
        self._put = put
        self._parameters = parameters
        self._on_push = on_push
        self._on_refused = on_refused
        self._push_slots = threading.BoundedSemaphore(max_waiting_pushes)
        self._over = threading.Event()
        self._lock = threading.Lock()  # of the actors' table and views
        self._actors: dict[str, _Actor] = {}

    def finish(self) -> None:
        """Answers every call with RUN_OVER from now on."""
        self._over.set()

    def actors(self) -> list[ActorView]:
        """Returns every actor that called in the last 5 minutes, ordered by id."""
        since = time.monotonic() - _SHOWN_S
        with self._lock:
            views = [actor.view for actor in self._actors.values()]
        return sorted(view for view in views if view.last_contact > since)

    @_answering
    def Handshake(  # noqa: N802
        self, request: impala_pb2.HandshakeRequest, context: grpc.ServicerContext
    ) -> impala_pb2.HandshakeReply:
        """Admits an actor that fits; it replaces its own earlier session."""
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
        snapshot = self._parameters.latest
        if snapshot is None:
            raise _CallError(grpc.StatusCode.UNAVAILABLE, "the learner has no parameters yet")
        # Not "<": after a restart from a checkpoint, the learner's version may be the lower one.
        if snapshot.parameter_version == request.known_version:
            return impala_pb2.GetParametersReply(outcome=impala_pb2.UNCHANGED)
        return snapshot.reply()

    @_answering
    def PushUnroll(  # noqa: N802
        self, request: impala_pb2.PushUnrollRequest, context: grpc.ServicerContext
    ) -> impala_pb2.PushUnrollReply:
        """Puts an unroll into the queue, exactly once. Waits while the queue is full."""
        if self._over.is_set():
            self._mark_told(request.actor_id)
            return impala_pb2.PushUnrollReply(outcome=impala_pb2.RUN_OVER)
        actor = self._actor_of(request)
        with self._push_slot(actor, context):
            if request.sequence <= actor.last_sequence:
                return impala_pb2.PushUnrollReply(outcome=impala_pb2.DUPLICATE)
            try:
                self._put_unroll(actor, request)
            except RefusedUnroll as refused:
                self._count_refusal(actor, request, str(refused))
                return impala_pb2.PushUnrollReply(outcome=impala_pb2.REFUSED, message=str(refused))
            except QueueClosed as error:
                if not self._over.is_set():
                    # Stopped before the run was over: the run may resume, so the actor retries.
                    raise _CallError(
                        grpc.StatusCode.UNAVAILABLE, "the learner is stopping"
                    ) from error
                self._mark_told(request.actor_id)
                return impala_pb2.PushUnrollReply(outcome=impala_pb2.RUN_OVER)
        return impala_pb2.PushUnrollReply(outcome=impala_pb2.OK)

    def _put_unroll(self, actor: _Actor, request: impala_pb2.PushUnrollRequest) -> None:
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
                memory_mb=report.memory_mb,
                unrolls=actor.view.unrolls + report.num_unrolls,
            )
        if self._on_push is not None:
            self._on_push(report)

    def _count_refusal(
        self, actor: _Actor, request: impala_pb2.PushUnrollRequest, reason: str
    ) -> None:
        actor.last_sequence = request.sequence
        with self._lock:
            before = actor.view
            refused = before.refused + request.num_environments
            actor.view = before._replace(refused=refused, last_refusal=reason)
        if self._on_refused is not None:
            self._on_refused(request.num_environments)
        if before.refused == 0 or before.last_refusal != reason:
            logger.warning("%s: an unroll was refused: %s", request.actor_id, reason)

    @contextmanager
    def _push_slot(self, actor: _Actor, context: grpc.ServicerContext) -> Iterator[None]:
        """Waits until the actor's earlier push is done; keeps threads free for other calls."""
        if not self._push_slots.acquire(blocking=False):
            raise _CallError(
                grpc.StatusCode.UNAVAILABLE, "too many pushes are waiting for the learner"
            )
        try:
            remaining = min(
                context.time_remaining(), PUSH_DEADLINE_S
            )  # infinite without a deadline
            if not actor.push_lock.acquire(timeout=remaining):
                raise _CallError(
                    grpc.StatusCode.DEADLINE_EXCEEDED, "an earlier try is still waiting"
                )
            try:
                yield
            finally:
                actor.push_lock.release()
        finally:
            self._push_slots.release()

    def _admit(self, actor_id: str, session: int, host: str) -> None:
        view = ActorView(actor_id, host, last_contact=time.monotonic())
        with self._lock:
            known = self._actors.get(actor_id)
            if known is not None and known.session == session:
                return  # a repeated handshake: earlier pushes stay counted
            self._actors[actor_id] = _Actor(session, view)
        logger.info("actor %s %s from %s", actor_id, "reconnected" if known else "joined", host)

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
            actor.view = actor.view._replace(last_contact=time.monotonic())
            return actor

    def _mark_told(self, actor_id: str) -> None:
        with self._lock:
            actor = self._actors.get(actor_id)
            if actor is not None:
                actor.view = actor.view._replace(told_run_over=True, last_contact=time.monotonic())


def _report(request: impala_pb2.PushUnrollRequest, unroll: Unroll) -> PushReport:
    returns = request.episode_returns
    for name in ("episode_lengths", "episode_levels"):
        count = len(getattr(request, name))
        if count != len(returns):
            raise _CallError(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"{name}: expected {len(returns)} like episode_returns, got {count}",
            )
    if not all(map(math.isfinite, returns)) or min(request.episode_lengths, default=0) < 0:
        raise RefusedUnroll("episodes: a return that is NaN or infinite, or a negative length")
    return PushReport(
        actor_id=request.actor_id,
        num_unrolls=request.num_environments,
        parameter_version=int(
            unroll.parameter_version.max()
        ),  # an unroll's environments all use one version
        episodes=[
            Episode(each, length, level=level)
            for each, length, level in zip(
                returns, request.episode_lengths, request.episode_levels, strict=True
            )
        ],
        agent_steps_per_s=request.agent_steps_per_s,
        push_wait_fraction=request.push_wait_fraction,
        memory_mb=request.memory_mb,
    )


def _host(peer: str) -> str:
    """Returns the host in gRPC's 'ipv4:10.0.0.2:5000' or 'ipv6:%5B::1%5D:5000'."""
    return urllib.parse.unquote(peer.partition(":")[2].rpartition(":")[0]).strip("[]")
