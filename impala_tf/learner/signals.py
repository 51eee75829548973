"""What learners tell each other before an update, and while they wait for one."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from impala_tf.learner.group import LearnerGroup


class ControlFlags(NamedTuple):
    """What the group should do. Flags are OR-ed over all learners."""

    stop: bool
    write_row: bool  # after the update
    checkpoint: bool  # after the update
    wait: bool = False  # not update yet: a learner still waits for its batch


def exchange(
    group: LearnerGroup, flags: ControlFlags, has_batch: bool
) -> tuple[ControlFlags, list[bool]]:
    """Returns the flags of the group, and by rank which learners have a batch.

    Args:
      group: all of its learners call this together.
      flags: this learner's.
      has_batch: whether this learner has a batch.
    """
    batches = np.zeros(group.size, np.float32)
    batches[group.rank] = has_batch
    own = tf.constant(np.concatenate([np.array(flags, np.float32), batches]))
    sums = np.asarray(group.sum(own, name="signals"))
    group_flags, batches = np.split(sums, [len(flags)])
    return ControlFlags(*(bool(flag > 0) for flag in group_flags)), (batches > 0).tolist()
