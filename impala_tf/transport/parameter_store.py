"""The newest parameters, passed from the learner's loop to the threads that serve actors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from impala_tf.transport import impala_pb2
from impala_tf.transport.codec import NamedSpec, encode


class Snapshot:
    """One version of the parameters. Immutable; encoded once, when first requested."""

    def __init__(self, parameter_version: int, tensors: Sequence[np.ndarray]) -> None:
        self.parameter_version = parameter_version
        self.tensors = tuple(tensors)
        self._reply: bytes | None = None

    def reply(self, specs: Sequence[NamedSpec]) -> bytes:
        """Returns the GetParametersReply with this version, encoded as the run's specs say.

        Call it in one thread: the event loop of the server.
        """
        if self._reply is None:
            self._reply = impala_pb2.GetParametersReply(
                outcome=impala_pb2.OK,
                parameter_version=self.parameter_version,
                tensors=list(map(encode, specs, self.tensors)),
            ).SerializeToString()
        return self._reply


class ParameterStore:
    """Holds the newest snapshot. Thread-safe: readers always see one whole version."""

    def __init__(self) -> None:
        self._snapshot: Snapshot | None = None

    @property
    def latest(self) -> Snapshot | None:
        """The newest snapshot; None before the first `publish`."""
        return self._snapshot

    def publish(self, parameter_version: int, tensors: Sequence[np.ndarray]) -> None:
        """Makes this the newest version and takes over its arrays.

        The arrays, in the order of the run's parameter specs, become read-only: they are encoded
        later, when an actor asks, and must not change until then.
        """
        for tensor in tensors:
            tensor.setflags(write=False)
        self._snapshot = Snapshot(parameter_version, tensors)  # one assignment, so it is atomic
