"""How learners act as one: the group interface, a group of one, and a Horovod group.

The only file that imports Horovod, and only when there is more than one learner.
"""

from __future__ import annotations

import json
from typing import Any, Protocol

import numpy as np
import tensorflow as tf


class LearnerLostError(Exception):
    """Another learner of the group ended, or cannot be reached any more; the message says whom."""


class LearnerGroup(Protocol):
    """What a learner asks of the others; all must make the same calls in the same order."""

    rank: int  # 0 writes checkpoints and metrics
    size: int  # learners in the group

    def sum(self, tensors: list[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the sums over all learners. Called inside the update's graph, once an update."""

    def broadcast(self, variables: list[tf.Variable]) -> None:
        """Gives every learner rank 0's values."""

    def gather(self, value: Any) -> list[Any]:
        """Returns every learner's JSON-able value, by rank."""

    def is_loss(self, error: BaseException) -> bool:
        """Whether `error`, raised by any of these, says that another learner was lost."""

    def close(self) -> None:
        """Leaves the group, which ends it for the others too."""


class SingleLearner:
    """A group of one."""

    rank = 0
    size = 1

    def sum(self, tensors: list[tf.Tensor]) -> list[tf.Tensor]:
        """Returns its argument."""
        return tensors

    def broadcast(self, variables: list[tf.Variable]) -> None:
        """Does nothing."""

    def gather(self, value: Any) -> list[Any]:
        """Returns [value]."""
        return [value]

    def is_loss(self, error: BaseException) -> bool:
        """Returns False: there is nobody else."""
        return False

    def close(self) -> None:
        """Does nothing."""


class HorovodGroup:
    """The learners that horovodrun, mpirun or the front end started together.

    Raises:
      ImportError: Horovod is not installed.
    """

    def __init__(self) -> None:
        import horovod.tensorflow as hvd

        self._hvd = hvd
        hvd.init()
        self.rank: int = hvd.rank()
        self.size: int = hvd.size()

    def sum(self, tensors: list[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the sums, by one fused all-reduce."""
        # Named, because learners meet by name, and the graphs of a learner with a batch and of one
        # without would give it different ones.
        return self._hvd.grouped_allreduce(
            tensors, op=self._hvd.Sum, name="update", ignore_name_scope=True
        )

    def broadcast(self, variables: list[tf.Variable]) -> None:
        """Gives every learner rank 0's values."""
        self._hvd.broadcast_variables(variables, root_rank=0)

    def gather(self, value: Any) -> list[Any]:
        """Returns every learner's value. It travels as JSON: Horovod itself would unpickle it."""
        text = np.frombuffer(json.dumps(value).encode(), np.uint8)
        sizes = self._hvd.allgather(tf.constant([text.size], tf.int32)).numpy()
        everything = self._hvd.allgather(tf.constant(text)).numpy()
        parts = np.split(everything, np.cumsum(sizes)[:-1])
        return [json.loads(part.tobytes()) for part in parts]

    def is_loss(self, error: BaseException) -> bool:
        """Whether a collective operation failed, which is how Horovod says so."""
        return isinstance(error, tf.errors.OpError) and "orovod" in str(error)

    def close(self) -> None:
        """Leaves the group, which ends it for the others too."""
        self._hvd.shutdown()
