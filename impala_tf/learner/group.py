"""The group of learners and its all-reduce: a group of one, or Horovod's.

This is the only file that imports Horovod, and only if there is more than one learner.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from impala_tf.machine.supervision import Members
from impala_tf.types import Nest


class LostPeerError(Exception):
    """Another learner of the group has ended or is unreachable; the message names it."""


class LearnerGroup:
    """A group of learners with collective operations: here of one, in `HorovodGroup` of several.

    All learners must make the same calls in the same order.

    Args:
      told: the members, if the run has more learners that are away; None: this is the only one.

    Attributes:
      rank: this learner's rank. Rank 0 writes checkpoints and metrics.
      size: the number of learners in the group.
      members: the group's learners by rank, as numbers among all learners of the run.
      away_since_unix_s: Unix time since when each learner outside the group is away, by number.
    """

    rank = 0
    size = 1

    def __init__(self, told: Members | None = None) -> None:
        self.members: Sequence[int] = (0,) if told is None else told.numbers
        self.away_since_unix_s = {} if told is None else told.away_since_unix_s

    def sum(self, nest: Nest, name: str) -> Nest:
        """Returns a nest of tensors, summed over all learners.

        Calls with the same name must have the same shapes. It may be called inside a graph.
        """
        return nest

    def broadcast(self, variables: list[tf.Variable]) -> None:
        """Assigns rank 0's values to the variables of every learner."""

    def gather(self, value: Any) -> list[Any]:
        """Returns every learner's JSON-able value, by rank."""
        return [value]

    def is_lost_peer(self, error: BaseException) -> bool:
        """Returns whether `error`, raised by one of these operations, means a lost peer."""
        return False

    def close(self) -> None:
        """Leaves the group, which ends the group for all learners."""


class HorovodGroup(LearnerGroup):
    """The learners that horovodrun, mpirun or supervisors started as one group.

    Args:
      told: the members, from a supervisor; None: all learners of the run, by rank.

    Raises:
      ImportError: Horovod is not installed.
    """

    def __init__(self, told: Members | None = None) -> None:
        import horovod.tensorflow as hvd

        super().__init__(told)
        self._hvd = hvd
        hvd.init()
        self.rank, self.size = hvd.rank(), hvd.size()
        if told is None:
            self.members = range(self.size)

    def sum(self, nest: Nest, name: str) -> Nest:
        """Returns the sums, from one fused all-reduce."""
        # Horovod matches operations by name. Automatic names depend on how often a graph was built,
        # which differs between learners.
        sums = self._hvd.grouped_allreduce(
            tf.nest.flatten(nest), op=self._hvd.Sum, name=name, ignore_name_scope=True
        )
        return tf.nest.pack_sequence_as(nest, sums)

    def broadcast(self, variables: list[tf.Variable]) -> None:
        """Assigns rank 0's values to the variables of every learner."""
        self._hvd.broadcast_variables(variables, root_rank=0)

    def gather(self, value: Any) -> list[Any]:
        """Returns every learner's value, sent as JSON: Horovod's own gather would unpickle it."""
        text = np.frombuffer(json.dumps(value).encode(), np.uint8)
        sizes = self._hvd.allgather(tf.constant([text.size], tf.int32)).numpy()
        everything = self._hvd.allgather(tf.constant(text)).numpy()
        parts = np.split(everything, np.cumsum(sizes)[:-1])
        return [json.loads(part.tobytes()) for part in parts]

    def is_lost_peer(self, error: BaseException) -> bool:
        """Returns whether a collective operation failed: Horovod reports a lost peer that way."""
        return isinstance(error, tf.errors.OpError) and "orovod" in str(error)

    def close(self) -> None:
        """Leaves the group, which ends the group for all learners."""
        self._hvd.shutdown()
