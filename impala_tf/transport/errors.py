"""What can go wrong between actor and learner, to be caught by meaning."""

# ruff: noqa: N818 - half of these are no errors, but how a run ends


class TransportError(Exception):
    """Base of all errors below; raised itself where a call failed for good."""


class HandshakeRefused(TransportError):
    """Actor and learner do not fit together; the message names both sides."""


class RunOver(TransportError):
    """The learner says that the run has ended: an actor's normal way out."""


class ClientClosed(TransportError):
    """The client was closed, perhaps while this call was under way."""


class QueueClosed(TransportError):
    """Raised by a learner's `put` once it takes no more unrolls; answered with RUN_OVER."""


class DecodeError(TransportError, ValueError):
    """Bytes that do not fit the tensor they are sent as."""
