"""What learners exchange in every update besides gradients: control flags, and who had a batch.

They travel as one float32 vector that is summed over all learners together with the gradients:
first the control flags, then one entry per rank that is 1 if this learner has a batch.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tensorflow as tf


class ControlFlags(NamedTuple):
    """What the group should do after an update. Flags are OR-ed over all learners."""

    stop: bool
    write_row: bool
    checkpoint: bool


_NUM_FLAGS = len(ControlFlags._fields)


def encode(flags: ControlFlags, has_batch: bool, rank: int, size: int) -> tf.Tensor:
    """Returns one learner's signals, float32 [3 + size]."""
    batches = [has_batch and other == rank for other in range(size)]
    return tf.constant([*map(float, flags), *map(float, batches)])


def decode(signals: tf.Tensor) -> tuple[ControlFlags, np.ndarray]:
    """Returns the group's flags, and bool [size]: which ranks had a batch.

    Args:
      signals: the sum over all learners, float32 [3 + size].
    """
    flags, batches = np.split(signals.numpy(), [_NUM_FLAGS])
    return ControlFlags(*(bool(flag > 0) for flag in flags)), batches > 0


def num_batches(signals: tf.Tensor) -> tf.Tensor:
    """Returns how many learners had a batch, float32 scalar. For use inside the update's graph."""
    return tf.reduce_sum(signals[_NUM_FLAGS:])
