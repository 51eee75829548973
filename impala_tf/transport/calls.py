"""How the service answers a call: messages parsed, exceptions turned into gRPC statuses."""

from __future__ import annotations

import functools
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError as MessageError
from google.protobuf.message import Message

from impala_tf.transport import impala_pb2
from impala_tf.transport.grpc_options import MAX_HANDSHAKE_BYTES
from impala_tf.transport.handshake import shown
from impala_tf.transport.push_checks import CallError

logger = logging.getLogger(__name__)

Request = TypeVar("Request", bound=Message)
_LARGE = (impala_pb2.PushUnrollRequest, impala_pb2.InferRequest)


def answering(kind: type[Request]) -> Callable[..., Callable[..., Awaitable[bytes]]]:
    """Parses requests of one kind, and turns exceptions into gRPC statuses.

    Unexpected ones are logged with their traceback. What is not such a message is refused.
    """

    def decorate(method: Callable[..., Awaitable[bytes]]) -> Callable[..., Awaitable[bytes]]:
        @functools.wraps(method)
        async def answer(self: Any, data: bytes, context: Any) -> bytes:
            name = "of an unknown actor"
            try:
                request = _parse(kind, data)
                name = f"of actor {shown(request.actor_id)}"  # type: ignore[attr-defined]
                return await method(self, request, context)
            except CallError as error:
                code, message = error.code, str(error)
            except Exception:
                logger.exception("%s %s failed", method.__name__, name)
                code, message = grpc.StatusCode.INTERNAL, "the learner failed, see its log"
            await context.abort(code, message)  # raises
            raise AssertionError

        return answer

    return decorate


def reply(kind: type[Message], outcome: impala_pb2.Outcome, **fields: Any) -> bytes:
    """Returns a message of a kind, encoded."""
    return kind(outcome=outcome, **fields).SerializeToString()


def check_environments(num_environments: int, most: int) -> None:
    """Raises CallError if a request is for none, or for more than the handshake said."""
    if not 1 <= num_environments <= most:
        raise CallError(
            grpc.StatusCode.INVALID_ARGUMENT,
            f"num_environments: expected 1 to {most}, got {num_environments}",
        )


def _parse(kind: type[Request], data: bytes) -> Request:
    if kind not in _LARGE and len(data) > MAX_HANDSHAKE_BYTES:
        raise CallError(grpc.StatusCode.INVALID_ARGUMENT, f"{len(data)} bytes are too many")
    try:
        return kind.FromString(data)
    except MessageError as error:
        raise CallError(grpc.StatusCode.INVALID_ARGUMENT, "not a message") from error
