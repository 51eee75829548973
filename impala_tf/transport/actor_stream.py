"""The learner's end of an actor's stream."""

from __future__ import annotations

import asyncio
import urllib.parse
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError as MessageError

from impala_tf.printable import printable
from impala_tf.transport import impala_pb2
from impala_tf.transport.failures import StreamError
from impala_tf.transport.wire import PING_S

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


def show(text: str, longest: int = 80) -> str:
    """Returns the start of a text from an actor, made safe for logs and terminals."""
    return printable(text[:longest])


def _parse(data: bytes | bytearray) -> impala_pb2.FromActor:
    try:
        return impala_pb2.FromActor.FromString(data)  # type: ignore[arg-type]
    except MessageError as error:
        raise StreamError("not a message") from error
