"""The actors' streams and sessions. A name is of one live process, whose unrolls count once."""

from __future__ import annotations

import asyncio
import logging
import time
import urllib.parse
from collections.abc import Container
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError as MessageError

from impala_tf.transport import impala_pb2
from impala_tf.transport.failures import HandshakeRefused, StreamError
from impala_tf.transport.wire import PING_S
from impala_tf.types import ActorReport

logger = logging.getLogger(__name__)

SHOWN_S = 300.0
"""A lost actor is hidden after this many seconds. It reappears when it reconnects."""
MOST_NAMES = 2_000
"""How many names of one certificate are remembered. An actor that was cut off for hours may repeat
its last push."""
KEPT_S = 60.0
"""For how long after a message a lost actor's name stays with its certificate, in seconds."""
_ANSWER_S = 10.0  # a large message may be on its way before the answer to a ping
REQUESTS = ("parameters", "push", "infer", "network")
_PING = impala_pb2.FromLearner(ping=True).SerializeToString()


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
        if kind in REQUESTS:
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


class Session:
    """One process of an actor, as its learner knows it. A restarted actor has a new session.

    Changed in the event loop and by threads that take pushes; read by any thread.

    Args:
      hello: the actor's handshake.
      stream: the actor's stream.

    Attributes:
      actor_id: the actor's name.
      number: a random number that the actor chose.
      num_environments: the largest N of a push.
      host: the address that the actor connects from.
      certificate: the name in its certificate.
      stream: the open stream; None while there is none.
      restarts: how many other processes had the name before.
      last_sequence: the number of the last push that was accepted, refused or stale; -1: none.
      last_refusal: why an unroll was last refused, without numbers; '': none was.
      pushing: the push that is being put into the queue; None if there is none.
      parameter_version: of the last push; -1: none yet.
      report: of the last push.
      trouble: what keeps the actor from acting; '' after a push.
      told_run_over: whether it knows that the run is over.
    """

    def __init__(self, hello: impala_pb2.Hello, stream: ActorStream) -> None:
        self.actor_id = hello.actor_id
        self.number = hello.session
        self.num_environments = hello.num_environments
        self.host = stream.host
        self.certificate = stream.certificate
        self.stream: ActorStream | None = stream
        self.restarts = 0
        self.last_sequence = -1
        self.last_refusal = ""
        self.pushing: asyncio.Future[None] | None = None
        self.parameter_version = -1
        self.report = ActorReport()
        self.trouble = ""
        self.told_run_over = False
        self.note_contact()

    def note_contact(self) -> None:
        """Notes that the actor has sent something."""
        self._contact_s = time.monotonic()

    def count(self, sequence: int, parameter_version: int, report: ActorReport) -> None:
        """Notes a push that was used, or was stale; see the attributes."""
        self.last_sequence, self.parameter_version = sequence, parameter_version
        self.report, self.trouble = report, ""

    @property
    def last_contact(self) -> float:
        """Seconds of the monotonic clock. A push that waits for room in the queue counts."""
        return time.monotonic() if self.pushing else self._contact_s

    @property
    def is_present(self) -> bool:
        """Whether the stream is open, however long the actor's unroll takes."""
        return self.stream is not None


class Sessions:
    """The actors of one learner. `list_shown` and `count_present` are thread-safe."""

    def __init__(self) -> None:
        self._current: dict[str, Session] = {}

    def find(self, hello: impala_pb2.Hello, certificate: str) -> Session | None:
        """Returns the session of an actor; None if it does not have its name now."""
        session = self._current.get(hello.actor_id)
        if session and (session.number, session.certificate) == (hello.session, certificate):
            return session
        return None

    async def admit(
        self, hello: impala_pb2.Hello, stream: ActorStream, revoked: Container[str] = ()
    ) -> Session:
        """Gives a name to the process at the other end of a stream, and returns its session.

        Args:
          hello, stream: see `Session`.
          revoked: the certificates whose names are free.

        Raises:
          HandshakeRefused: another live actor has the name. The message names both hosts. Or its
            certificate has too many live actors.
          StreamError: another certificate had the name a moment ago; it is free later.
        """
        name, certificate = hello.actor_id, stream.certificate
        while holder := self._current.get(name):
            if self.find(hello, certificate):  # it calls again: its pushes stay counted
                self._end_stream(holder)
                holder.stream = stream
                holder.note_contact()
                return holder
            if holder.stream is not None and await holder.stream.is_alive():
                raise HandshakeRefused(
                    f"{name}: this name is taken by an actor at {holder.host}, and this one is"
                    f" at {stream.host}; give each actor its own --task"
                )
            silent_s = time.monotonic() - holder.last_contact
            is_others = holder.certificate != certificate and holder.certificate not in revoked
            if is_others and silent_s < KEPT_S:
                since = f"{name}: another certificate had this name {silent_s:.0f} s ago"
                raise StreamError(since, grpc.StatusCode.UNAVAILABLE)
            if self._current.get(name) is holder:  # else another process has taken the name
                break
        session = Session(hello, stream)
        if holder is None:
            self._forget_one(certificate)
        else:
            session.restarts = holder.restarts + 1
            self._end_stream(holder)
            del self._current[name]
        self._current[name] = session  # the last one
        logger.info("actor %s %s from %s", name, "reconnected" if holder else "joined", stream.host)
        return session

    def _forget_one(self, certificate: str) -> None:
        """Forgets the lost actor of a certificate that joined first, if it has many names."""
        own = [each for each in self._current.items() if each[1].certificate == certificate]
        if len(own) < MOST_NAMES:
            return
        lost = (name for name, each in own if each.stream is None and each.pushing is None)
        if (first := next(lost, None)) is None:
            raise HandshakeRefused(f"{len(own)} actors with its certificate are here")
        del self._current[first]

    @staticmethod
    def _end_stream(session: Session) -> None:
        if session.stream is not None:
            session.stream.end(StreamError("its name has called again", grpc.StatusCode.ABORTED))

    def end(self, reason: Exception) -> None:
        """Ends all streams for a reason; see `ActorStream.end`."""
        for session in self._current.values():
            if session.stream is not None:
                session.stream.end(reason)

    def count_present(self) -> int:
        """Returns the number of actors whose streams are open."""
        return sum(session.is_present for session in list(self._current.values()))

    def list_shown(self) -> list[Session]:
        """Returns all actors that are present or called in the last SHOWN_S seconds, by name."""
        shown_from = time.monotonic() - SHOWN_S
        shown = [
            session
            for session in list(self._current.values())
            if session.is_present or session.last_contact > shown_from
        ]
        return sorted(shown, key=lambda session: session.actor_id)


def _parse(data: bytes | bytearray) -> impala_pb2.FromActor:
    try:
        return impala_pb2.FromActor.FromString(data)  # type: ignore[arg-type]
    except MessageError as error:
        raise StreamError("not a message") from error
