"""The learner's side of the transport: reads actors' streams, admits them, answers requests."""

from __future__ import annotations

import asyncio
import logging
import time
import urllib.parse
from collections.abc import Callable, Collection, Container, Sequence
from concurrent.futures import Future
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError as MessageError

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
from impala_tf.transport.sessions import Session
from impala_tf.transport.wire import PING_S, check_fits, encode_specs, show

logger = logging.getLogger(__name__)

Networks = Callable[[int], "Future[bytes]"]
"""Takes N. Converts the network to the bytes of an `ActingModel`. May fail with NoNetwork."""

Infer = Callable[[int, Sequence[bytes]], "Future[tuple[int, list[bytes]]]"]
"""Takes num_environments and the tensors of an InferRequest.

Results in the parameter_version and tensors of an InferReply. May fail with DecodeError or
RefusedUnroll if it cannot be answered, or with QueueClosed if the learner stops."""

_ANSWER_S = 10.0  # a large message may be on its way before the answer to a ping
_REQUESTS = ("parameters", "push", "infer", "network")
_PING = impala_pb2.FromLearner(ping=True).SerializeToString()
# How often and for how long to poll for a new version. If none comes, the next update lacks the
# unrolls of a lost actor, and the other actors have to fill the batch.
_POLL_S = 0.002
_PATIENCE_S = 60.0


class ActorStream:
    """Reads an actor's messages and writes the learner's, in the event loop of the server.

    Args:
      context: gRPC's context of the call.
      most_bytes: the size of the largest message that is sent in parts.

    Attributes:
      host: the address that the actor connects from.
      certificate: the name in its certificate.
    """

    def __init__(self, context: Any, most_bytes: int) -> None:
        # gRPC has 'ipv4:10.0.0.2:5000' or 'ipv6:%5B::1%5D:5000'.
        peer = urllib.parse.unquote(context.peer().partition(":")[2].rpartition(":")[0])
        self.host = peer.strip("[]")
        (name,) = context.auth_context()["x509_common_name"]
        self.certificate = str(name.decode())
        self._context = context
        self._most_bytes = most_bytes
        self._parts = bytearray()
        self._unanswered: set[str] = set()  # kinds of requests
        self._writing = asyncio.Lock()
        self._heard = asyncio.Event()
        self._ended = asyncio.get_running_loop().create_future()

    async def read(self) -> impala_pb2.FromActor | None:
        """Returns the actor's next message; None if there will be no more.

        Raises:
          StreamError: bytes that are no message, or too many, or another request of a kind.
        """
        while (data := await self._context.read()) is not grpc.aio.EOF:  # type: ignore[attr-defined]
            self._heard.set()
            message = _parse(data)
            if message.WhichOneof("kind") != "part":
                return self._note_request(message)
            self._parts += message.part.data
            if len(self._parts) > self._most_bytes:
                raise StreamError(f"a message of more than {self._most_bytes} bytes")
            if message.part.last:
                whole, self._parts = self._parts, bytearray()
                return self._note_request(_parse(whole))
        return None

    def _note_request(self, message: impala_pb2.FromActor) -> impala_pb2.FromActor:
        kind = message.WhichOneof("kind") or ""
        if kind in self._unanswered:
            raise StreamError(f"{kind}: the request before it has no answer yet")
        if kind in _REQUESTS:
            self._unanswered.add(kind)
        return message

    async def write(self, message: impala_pb2.FromLearner | bytes, answers: str = "") -> None:
        """Sends a message, which may be encoded already, and may answer a kind of request."""
        data = message if isinstance(message, bytes) else message.SerializeToString()
        async with self._writing:
            self._unanswered.discard(answers)  # first: the next one may come during `write`
            await self._context.write(data)

    async def ping(self) -> None:
        """Sends signs of life, for ever."""
        while True:
            await asyncio.sleep(PING_S)
            await self.write(_PING)

    async def is_alive(self) -> bool:
        """Returns whether the actor answers a ping in time."""
        self._heard.clear()
        try:
            async with asyncio.timeout(_ANSWER_S):
                await self.write(_PING)
                await self._heard.wait()
        except (TimeoutError, grpc.aio.BaseError, asyncio.InvalidStateError):
            return False
        return True

    def end(self, reason: Exception) -> None:
        """Makes `wait_for_end` raise a reason."""
        if not self._ended.done():
            self._ended.set_exception(reason)
            self._ended.exception()  # keeps asyncio from logging that it was never retrieved

    async def wait_for_end(self) -> None:
        """Waits for `end`, and raises its reason."""
        await asyncio.shield(self._ended)


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
      pushes: as given.
      sessions: the actors' sessions.
      revoked: the names of revoked certificates, which are refused.
      is_over: whether the run is over.
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
        self.pushes = pushes
        self.sessions = pushes.sessions
        self.revoked: Container[str] = ()
        self._parameters = parameters
        self._parameter_specs = [NamedSpec.of(*spec) for spec in pushes.terms.parameter_specs]
        self._networks = networks
        self._number, self._members = number, members
        self.is_over = False
        self._infer = infer
        self._num_held = 0  # questions that wait for the learner's next update

    def finish(self) -> None:
        """Tells all actors that the run is over, from now on. Call it in the event loop."""
        self.is_over = True
        self.sessions.end(RunOver())

    def num_acting(self) -> int:
        """Returns the number of live actors that do not wait for the learner's next update."""
        return self.sessions.count_present() - self._num_held

    async def Act(self, requests: object, context: Any) -> None:  # noqa: N802
        """Serves an actor until its stream ends."""
        stream, hello = ActorStream(context, self.pushes.most_bytes), impala_pb2.Hello()
        session: Session | None = None
        try:
            message = await stream.read()
            hello = hello if message is None else message.hello
            if self.is_over:
                raise RunOver
            self._check_not_revoked(stream)
            check_fits(hello, self.pushes.terms, self.pushes.codec.specs)
            preferred = (each for each in hello.learners if each in self._members)
            learner = next(preferred, self._number)
            if learner != self._number:
                await stream.write(FromLearner(moved=learner))
                return
            session = await self.sessions.admit(hello, stream, self.revoked)
            welcome = impala_pb2.Welcome(
                run_id=self.pushes.terms.run_id,
                parameter_specs=encode_specs(self._parameter_specs),
                run_steps=self.pushes.terms.run_steps,
                restarts=session.restarts,
                level=self.pushes.terms.level,
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
            logger.warning("refused actor %s at %s: %s", show(hello.actor_id), stream.host, refused)
            await stream.write(FromLearner(refused=str(refused)))
        except StreamError as error:
            await context.abort(error.code, str(error))
        except Exception:
            logger.exception("an answer to actor %s failed", show(hello.actor_id))
            await context.abort(grpc.StatusCode.INTERNAL, "the learner failed, see its log")
        finally:
            if session is not None and session.stream is stream:
                session.stream = None
                self.pushes.grants.lost(session)

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
                    if kind in _REQUESTS:
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
                answer = FromLearner(push=await self.pushes.push(session, request.push))
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
        await self.pushes.grants.wait(session, request.sequence)
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


def _parse(data: bytes | bytearray) -> impala_pb2.FromActor:
    try:
        return impala_pb2.FromActor.FromString(data)  # type: ignore[arg-type]
    except MessageError as error:
        raise StreamError("not a message") from error
