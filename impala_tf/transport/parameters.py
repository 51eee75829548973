"""The newest parameters, handed from the learner's loop to the threads that serve actors."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

from impala_tf.transport import impala_pb2


class Snapshot:
    """One version of the parameters. Immutable; encoded when first asked for, and only once."""

    def __init__(self, version: int, tensors: Sequence[np.ndarray]) -> None:
        self.version = version
        self.tensors = tuple(tensors)
        self._reply: impala_pb2.GetParametersReply | None = None
        self._encoding = threading.Lock()

    def reply(self) -> impala_pb2.GetParametersReply:
        """Returns the message that carries this version; read it only."""
        with self._encoding:
            if self._reply is None:
                self._reply = impala_pb2.GetParametersReply(
                    outcome=impala_pb2.OK,
                    version=self.version,
                    tensors=[tensor.tobytes() for tensor in self.tensors],
                )
            return self._reply


class ParameterStore:
    """Holds the newest snapshot. Thread-safe; a reader sees one whole version or another."""

    def __init__(self) -> None:
        self._snapshot: Snapshot | None = None

    def publish(self, version: int, tensors: Sequence[np.ndarray]) -> None:
        """Swaps in a version (learner updates so far) and takes its arrays over.

        The arrays, in the order of the run's parameter specs, are made read-only: they are encoded
        only when an actor asks, and whoever wrote to them until then would tear the version.
        """
        for tensor in tensors:
            tensor.setflags(write=False)
        self._snapshot = Snapshot(version, tensors)  # one reference: swapped at once

    def newer_than(self, version: int) -> Snapshot | None:
        """Returns the newest snapshot, or None if that is `version` or there is none yet.

        A `version` above the newest was handed out before the learner went back to its last
        checkpoint. Its updates are lost, so that it counts as old.
        """
        snapshot = self._snapshot
        return None if snapshot is None or snapshot.version == version else snapshot
