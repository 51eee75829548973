"""The learner's side of the transport: admits actors and answers their requests."""

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
from impala_tf.transport.codec import NamedSpec
from impala_tf.transport.failures import (
    DecodeError,
    HandshakeRefused,
    NoNetwork,
    QueueClosed,
    RefusedUnroll,
    RunOver,
    StreamError,
)
from impala_tf.transport.impala_pb2 import FromActor, FromLearner
from impala_tf.transport.parameter_store import ParameterStore
from impala_tf.transport.pushes import Pushes, check_environments
from impala_tf.transport.sessions import REQUESTS, ActorStream, Session
from impala_tf.transport.wire import check_fits, encode_specs, show

logger = logging.getLogger(__name__)

Networks = Callable[[int], "Future[bytes]"]
"""Takes N. Converts the network to the bytes of an `ActingModel`. May fail with NoNetwork."""

Infer = Callable[[int, Sequence[bytes]], "Future[tuple[int, list[bytes]]]"]
"""Takes num_environments and the tensors of an InferRequest.

Results in the parameter_version and tensors of an InferReply. May fail with DecodeError or
RefusedUnroll if it cannot be answered, or with QueueClosed if the learner stops."""

_WARN_AGAIN_S = 60.0
# How often and for how long to poll for a new version. If none comes, the next update lacks the
# unrolls of a lost actor, and the other actors have to fill the batch.
_POLL_S = 0.002
_PATIENCE_S = 60.0


class LearnerService:
    """Answers all actors, each on a stream of its own, in the event loop of the server.

    Args:
      pushes: takes what actors push, and has the terms that they must agree with.
      parameters: the store where the learner publishes. Actors wait for its first version.
      infer: chooses actions for actors; None: actors choose their own.
      networks: converts the network for actors that run it without TensorFlow; None: actors run it
        with TensorFlow.
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
        infer: Infer | None = None,
        networks: Networks | None = None,
        number: int = 0,
        members: Collection[int] = (0,),
    ) -> None:
        self.terms = pushes.terms
        self.sessions = pushes.sessions
        self.revoked: Container[str] = ()
        self._pushes = pushes
        self._parameters = parameters
        self._parameter_specs = [NamedSpec.of(*spec) for spec in self.terms.parameter_specs]
        self._networks = networks
        self._number, self._members = number, members
        self._over = threading.Event()
        self._infer = infer
        self._num_held = 0  # questions that wait for the learner's next update
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
        """Tells all actors that the run is over, from now on. Call it in the event loop."""
        self._over.set()
        self.sessions.end(RunOver())

    def stop(self) -> None:
        """Ends all streams; the actors call again later. Call it in the event loop."""
        self.sessions.end(QueueClosed())

    def num_acting(self) -> int:
        """Returns the number of live actors that do not wait for the learner's next update."""
        return self.sessions.count_present() - self._num_held

    def actors(self) -> list[Session]:
        """Returns every actor that is present or was recently; see `Sessions.list_shown`."""
        return self.sessions.list_shown()

    def last_refusal(self) -> str:
        """Returns which actor was refused last, and why; '' if none was in the last minute."""
        at_s, refusal = self._last_refusal
        return refusal if time.monotonic() - at_s < _WARN_AGAIN_S else ""

    async def Act(self, requests: object, context: Any) -> None:  # noqa: N802
        """Serves an actor until its stream ends."""
        stream, hello = ActorStream(context, self._pushes.most_bytes), impala_pb2.Hello()
        session: Session | None = None
        try:
            message = await stream.read()
            hello = hello if message is None else message.hello
            if self.is_over:
                raise RunOver
            self._check_not_revoked(stream)
            check_fits(hello, self.terms, self._pushes.codec.specs)
            preferred = (each for each in hello.learners if each in self._members)
            learner = next(preferred, self._number)
            if learner != self._number:
                await stream.write(FromLearner(moved=learner))
                return
            session = await self.sessions.admit(hello, stream, self.revoked)
            welcome = impala_pb2.Welcome(
                run_id=self.terms.run_id,
                parameter_specs=encode_specs(self._parameter_specs),
                run_steps=self.terms.run_steps,
                restarts=session.restarts,
                level=self.terms.level,
            )
            await stream.write(FromLearner(welcome=welcome))
            await self._answer_requests(session, stream)
        except (RunOver, QueueClosed):
            if not self.is_over:  # the run may resume, so the actor calls again
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the learner is stopping")
            try:
                await stream.write(FromLearner(over=True))
            finally:  # the actor may end the stream at once
                if told := self.sessions.find(hello, stream.certificate):
                    told.told_run_over = True
        except HandshakeRefused as refused:
            self._note_refusal(
                stream.host, f"refused actor {show(hello.actor_id)} at {stream.host}: {refused}"
            )
            await stream.write(FromLearner(refused=str(refused)))
        except StreamError as error:
            await context.abort(error.code, str(error))
        except Exception:
            logger.exception("an answer to actor %s failed", show(hello.actor_id))
            await context.abort(grpc.StatusCode.INTERNAL, "the learner failed, see its log")
        finally:
            if session is not None and session.stream is stream:
                session.stream = None
                self._pushes.grants.lost(session)

    def _check_not_revoked(self, stream: ActorStream) -> None:
        if stream.certificate in self.revoked:
            raise HandshakeRefused(f"its certificate, {show(stream.certificate)}, was revoked")

    async def _answer_requests(self, session: Session, stream: ActorStream) -> None:
        """Answers each request in a task of its own, until the stream ends.

        Raises: why the learner ends the stream.
        """
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(stream.wait_for_end())
                group.create_task(stream.ping())
                while (request := await stream.read()) is not None:
                    self._check_not_revoked(stream)
                    kind = request.WhichOneof("kind")
                    if kind in REQUESTS:
                        group.create_task(self._answer(request, session, stream))
                    elif kind == "trouble":
                        session.trouble = show(request.trouble, 400)
                    elif kind != "pong":
                        raise StreamError(f"expected a request, got {kind or 'nothing'}")
                raise StreamError("the actor has ended its stream")
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _answer(self, request: FromActor, session: Session, stream: ActorStream) -> None:
        if self.is_over:  # the stream ends in a moment
            raise RunOver
        session.note_contact()
        answer: FromLearner | bytes
        match kind := request.WhichOneof("kind"):
            case "parameters":
                answer = await self._get_parameters(session, request.parameters)
            case "push":
                answer = FromLearner(push=await self._pushes.push(session, request.push))
            case "infer":
                answer = FromLearner(infer=await self._choose_actions(session, request.infer))
            case _:
                answer = FromLearner(network=await self._get_network(session, request.network))
        await stream.write(answer, answers=kind or "")

    async def _get_parameters(
        self, session: Session, request: impala_pb2.ParametersRequest
    ) -> FromLearner | bytes:
        """Waits until the actor may act. Returns the newest parameters, unless it has them."""
        while self._parameters.latest is None:
            await asyncio.sleep(0.1)
        await self._pushes.grants.wait(session, request.sequence)
        snapshot = self._parameters.latest
        if snapshot.parameter_version == request.known_version:
            return FromLearner(parameters={"unchanged": True})
        return snapshot.reply(self._parameter_specs, tuple(request.used))

    async def _get_network(
        self, session: Session, request: impala_pb2.NetworkRequest
    ) -> impala_pb2.NetworkReply:
        """Returns the network, for an actor that runs it without TensorFlow."""
        check_environments(request.num_environments, session.num_environments)
        if self._networks is None:
            return impala_pb2.NetworkReply(none="the learner converts none")
        conversion = asyncio.wrap_future(self._networks(request.num_environments))
        try:
            # Shielded, because other actors get the same network, even if this one is lost.
            return impala_pb2.NetworkReply(network=await asyncio.shield(conversion))
        except NoNetwork as error:
            return impala_pb2.NetworkReply(none=str(error))

    async def _choose_actions(
        self, session: Session, request: impala_pb2.InferRequest
    ) -> impala_pb2.InferReply:
        """Chooses actions for an actor's environments, once there is a version that it lacks."""
        check_environments(request.num_environments, session.num_environments)
        if self._infer is None:
            raise StreamError("the learner was started with --inference=actor")
        if request.known_version >= 0:
            await self._wait_for_other_version(request.known_version)
        try:
            answer = self._infer(request.num_environments, request.tensors)
            version, tensors = await asyncio.wrap_future(answer)
        except (DecodeError, RefusedUnroll) as error:
            raise StreamError(str(error)) from error
        return impala_pb2.InferReply(parameter_version=version, tensors=tensors)

    async def _wait_for_other_version(self, known_version: int) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        self._num_held += 1
        try:
            while time.monotonic() < deadline:
                snapshot = self._parameters.latest
                if snapshot is not None and snapshot.parameter_version != known_version:
                    return
                await asyncio.sleep(_POLL_S)
        finally:
            self._num_held -= 1

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
