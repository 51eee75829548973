"""The group of learners and its all-reduce: a group of one, and Horovod's.

The only file that imports Horovod, and only if there is more than one learner.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from impala_tf.machine.group_members import Members
from impala_tf.types import Nest


class LostPeerError(Exception):
    """Another learner of the group ended or became unreachable; the message names it."""


class LearnerGroup:
    """Learners with collective operations, here one alone; `HorovodGroup` has several.

    All learners must make the same calls in the same order.

    Args:
      told: who it is, if the run has more learners, which are away.

    Attributes:
      rank: rank 0 writes checkpoints and metrics.
      size: learners in the group.
      members: numbers of its learners among all of the run, by rank.
      away_since_unix_s: of the run's other learners, by number.
    """

    rank = 0
    size = 1

    def __init__(self, told: Members | None = None) -> None:
        self.members: Sequence[int] = (0,) if told is None else told.numbers
        self.away_since_unix_s = {} if told is None else told.away_since_unix_s

    def sum(self, nest: Nest, name: str) -> Nest:
        """Returns a nest of tensors, added up over all learners.

        Calls with one name have equal shapes. May be called inside a graph.
        """
        return nest

    def broadcast(self, variables: list[tf.Variable]) -> None:
        """Gives every learner rank 0's values."""

    def gather(self, value: Any) -> list[Any]:
        """Returns every learner's JSON-able value, by rank."""
        return [value]

    def is_lost_peer(self, error: BaseException) -> bool:
        """Whether `error`, raised by any of these operations, means that a peer was lost."""
        return False

    def close(self) -> None:
        """Leaves the group, which ends it for all learners."""


class HorovodGroup(LearnerGroup):
    """The learners that horovodrun, mpirun or supervisors started as one group.

    Args:
      told: who they are, by a supervisor; None: all learners of the run, by rank.

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
        # Horovod matches operations by name. The automatic ones depend on how often a graph was
        # made, which differs between learners.
        sums = self._hvd.grouped_allreduce(
            tf.nest.flatten(nest), op=self._hvd.Sum, name=name, ignore_name_scope=True
        )
        return tf.nest.pack_sequence_as(nest, sums)

    def broadcast(self, variables: list[tf.Variable]) -> None:
        """Gives every learner rank 0's values."""
        self._hvd.broadcast_variables(variables, root_rank=0)

    def gather(self, value: Any) -> list[Any]:
        """Returns every learner's value. It is sent as JSON: Horovod's own gather unpickles."""
        text = np.frombuffer(json.dumps(value).encode(), np.uint8)
        sizes = self._hvd.allgather(tf.constant([text.size], tf.int32)).numpy()
        everything = self._hvd.allgather(tf.constant(text)).numpy()
        parts = np.split(everything, np.cumsum(sizes)[:-1])
        return [json.loads(part.tobytes()) for part in parts]

    def is_lost_peer(self, error: BaseException) -> bool:
        """Whether a collective operation failed, which is how Horovod reports a lost peer."""
        return isinstance(error, tf.errors.OpError) and "orovod" in str(error)

    def close(self) -> None:
        """Leaves the group, which ends it for all learners."""
        self._hvd.shutdown()


# float16 holds 6e-8 to 65,504. An entry is at most as large as the norm, so entries 4,096 times
# as large as usual fit, and those that are a billionth of the norm are not yet 0.
_NORM_IN_UNITS = 16.0
_GROWTH = 1024.0  # of the unit, after a sum that did not fit
_LARGEST_UNIT = 2.0**60


class Float16Gradients:
    """Gradients as float16, in a unit that follows their norm.

    The unit is a power of two, so that changing it rounds nothing, and the same for all learners,
    who know the norm of their mean gradient. A sum that does not fit is not finite: the step is
    skipped, and the next one has a larger unit.
    """

    def __init__(self) -> None:
        self._unit = tf.Variable(1.0, trainable=False, name="gradient_unit")

    def encode(self, gradients: list[tf.Tensor]) -> list[tf.Tensor]:
        """Returns float32 gradients as float16."""
        return [tf.cast(gradient / self._unit, tf.float16) for gradient in gradients]

    def decode(self, sums: list[tf.Tensor]) -> list[tf.Tensor]:
        """Returns float16 sums over the learners as float32."""
        return [tf.cast(each, tf.float32) * self._unit for each in sums]

    def follow(self, norm: tf.Tensor) -> None:
        """Chooses the unit of the next step.

        Args:
          norm: global norm of this step's mean gradient, not finite if a sum did not fit.
        """
        fitting = 2.0 ** tf.math.ceil(tf.math.log(norm / _NORM_IN_UNITS) / tf.math.log(2.0))
        larger = tf.minimum(self._unit * _GROWTH, _LARGEST_UNIT)
        # Where everything was rounded to 0, the unit was too large, unless it is the usual one.
        unit = tf.where(norm > 0, fitting, tf.minimum(self._unit, 1.0))
        self._unit.assign(tf.where(tf.math.is_finite(norm), unit, larger))
