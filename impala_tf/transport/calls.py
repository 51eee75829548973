"""Helpers for answering calls: parse requests, identify callers, turn exceptions into statuses."""

from __future__ import annotations

import functools
import logging
import urllib.parse
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError as MessageError
from google.protobuf.message import Message

from impala_tf.printable import printable
from impala_tf.transport import impala_pb2
from impala_tf.transport.errors import CallError, QueueClosed, RunOver
from impala_tf.transport.wire import MAX_HANDSHAKE_BYTES

logger = logging.getLogger(__name__)

_LARGE = ("PushUnroll", "Infer")
_LONGEST_SHOWN = 80


def answering(method: Callable[..., Awaitable[Message | bytes]]) -> Callable[..., Awaitable[bytes]]:
    """Decorates a method that takes and returns messages, so that gRPC can pass it bytes.

    The method has the name of the call. It may also return an encoded reply. RunOver is answered
    with RUN_OVER, and so is QueueClosed after the run. A CallError is answered with its status.
    Other exceptions are logged with their traceback. Bytes that cannot be parsed are refused.
    """
    name = method.__name__
    request_type = getattr(impala_pb2, f"{name}Request")
    reply_type = getattr(impala_pb2, f"{name}Reply")

    @functools.wraps(method)
    async def answer(self: Any, data: bytes, context: Any) -> bytes:
        caller = "an unknown actor"
        try:
            if name not in _LARGE and len(data) > MAX_HANDSHAKE_BYTES:
                raise CallError(grpc.StatusCode.INVALID_ARGUMENT, f"{len(data)} bytes are too many")
            request = _parse(request_type, data)
            caller = f"actor {shown(request.actor_id)}"
            reply = await method(self, request, context)
            return reply if isinstance(reply, bytes) else reply.SerializeToString()
        except (RunOver, QueueClosed):
            if self.is_over:
                self.sessions.mark_told(request.actor_id)
                over: bytes = reply_type(outcome=impala_pb2.RUN_OVER).SerializeToString()
                return over
            # The learner stops before the run is over: the run may resume, so the actor retries.
            code, message = grpc.StatusCode.UNAVAILABLE, "the learner is stopping"
        except CallError as error:
            code, message = error.code, str(error)
        except Exception:
            logger.exception("%s of %s failed", name, caller)
            code, message = grpc.StatusCode.INTERNAL, "the learner failed, see its log"
        await context.abort(code, message)  # raises
        raise AssertionError

    return answer


def check_environments(num_environments: int, most: int) -> None:
    """Raises CallError if a request is for no environment, or for more than in the handshake."""
    if not 1 <= num_environments <= most:
        raise CallError(
            grpc.StatusCode.INVALID_ARGUMENT,
            f"num_environments: expected 1 to {most}, got {num_environments}",
        )


def name_in_certificate(context: Any) -> str:
    """Returns the name in the caller's certificate."""
    (name,) = context.auth_context()["x509_common_name"]
    return str(name.decode())


def host_of(context: Any) -> str:
    """Returns the caller's host; gRPC has 'ipv4:10.0.0.2:5000' or 'ipv6:%5B::1%5D:5000'."""
    return urllib.parse.unquote(context.peer().partition(":")[2].rpartition(":")[0]).strip("[]")


def shown(text: str, longest: int = _LONGEST_SHOWN) -> str:
    """Returns the start of a text from an actor, made safe for logs and terminals."""
    return printable(text[:longest])


def _parse(kind: Any, data: bytes) -> Any:
    try:
        return kind.FromString(data)
    except MessageError as error:
        raise CallError(grpc.StatusCode.INVALID_ARGUMENT, "not a message") from error
