"""The newest parameters, passed from the learner's loop to the threads that serve actors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from impala_tf.transport import impala_pb2
from impala_tf.transport.codec import NamedSpec, encode

_MOST_FORMS = 4


class Snapshot:
    """One version of the parameters. Immutable; each form is encoded when first requested."""

    def __init__(self, parameter_version: int, tensors: Sequence[np.ndarray]) -> None:
        self.parameter_version = parameter_version
        self.tensors = tuple(tensors)
        self._replies: dict[tuple[int, ...], bytes] = {}

    def reply(self, specs: Sequence[NamedSpec], used: tuple[int, ...] = ()) -> bytes:
        """Returns the encoded ParametersReply with this version.

        Not thread-safe: call it in the event loop of the server.

        Args:
          specs: the specs of the parameters as they are sent.
          used: indices of the parameters to send, ascending; none: all.
        """
        if used not in self._replies:
            encoded = [
                b"" if used and index not in used else encode(spec, tensor)
                for index, (spec, tensor) in enumerate(zip(specs, self.tensors, strict=True))
            ]
            reply = impala_pb2.FromLearner(
                parameters={"parameter_version": self.parameter_version, "tensors": encoded}
            ).SerializeToString()
            if len(self._replies) >= _MOST_FORMS:  # unusual: actors of a run request the same form
                return reply
            self._replies[used] = reply
        return self._replies[used]


class ParameterStore:
    """Holds the newest snapshot. Thread-safe: readers always see a complete version.

    Attributes:
      latest: the newest snapshot; None before the first `publish`.
    """

    def __init__(self) -> None:
        self.latest: Snapshot | None = None

    def publish(self, parameter_version: int, tensors: Sequence[np.ndarray]) -> None:
        """Makes this the newest version.

        The arrays, in the order of the run's parameter specs, become read-only: they are encoded
        later, when an actor asks for them, and must not change until then.
        """
        for tensor in tensors:
            tensor.setflags(write=False)
        self.latest = Snapshot(parameter_version, tensors)  # one assignment, so it is atomic
