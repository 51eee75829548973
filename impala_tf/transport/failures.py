"""The transport's exceptions, one per meaning."""

# ruff: noqa: N818 - half of these are not errors, but normal ends

from __future__ import annotations

import grpc


class TransportError(Exception):
    """Base of all errors below; raised itself if the connection failed and no retry would help."""


class HandshakeRefused(TransportError):
    """Actor and learner do not match; the message names both sides."""


class RunOver(TransportError):
    """The learner says that the run has ended; the actor exits normally."""


class ClientClosed(TransportError):
    """The client was closed."""


class QueueClosed(TransportError):
    """The learner takes no more unrolls, because the run is over or the learner restarts."""


class RefusedUnroll(TransportError):
    """The learner does not train on this unroll; the actor should continue with the next one."""


class RefusedVersion(RefusedUnroll):
    """The unroll's parameters are too old or unknown. Its finished games still count."""


class StaleUnroll(TransportError):
    """The learner learns from the newest parameters only; the actor should fetch them."""


class NoNetwork(TransportError):
    """The learner has no network that actors can run without TensorFlow; the message says why."""


class DecodeError(TransportError, ValueError):
    """Bytes that do not fit their tensor's spec."""


class StreamError(Exception):
    """Makes the learner end an actor's stream with a gRPC status; see `client` for which one."""

    def __init__(
        self, message: str, code: grpc.StatusCode = grpc.StatusCode.INVALID_ARGUMENT
    ) -> None:
        super().__init__(message)
        self.code = code
