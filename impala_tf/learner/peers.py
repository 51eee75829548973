"""A learner's view of its group: which learners have no batch, and whether one hangs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
import tensorflow as tf

from impala_tf.learner.learner_group import LearnerGroup


class ControlFlags(NamedTuple):
    """What the group should do next. Each flag is OR-ed over all learners."""

    stop: bool
    write_row: bool  # after the update
    checkpoint: bool  # after the update
    wait: bool = False  # do not update yet: a learner still waits for its batch
    regroup: bool = False  # stop, and restart with a different group of learners


MEET_S = 1.0
"""Learners that wait for batches meet this often, in seconds, to notice a lost peer or a stop."""
PATIENCE_S = 60.0
"""The group updates without the batch of a learner that has had none for this long."""
HUNG_S, FIRST_HUNG_S = 100.0, 400.0
"""A learner that spends this long in one gradient step hangs, or waits for one that does. It exits,
so that the group restarts. The first update takes longer, because learners compile."""


def exchange(
    group: LearnerGroup, flags: ControlFlags, played_steps: int | None
) -> tuple[ControlFlags, list[int | None]]:
    """Returns the flags of the group, and by rank the steps that were played of each batch.

    Args:
      group: the group; all of its learners must call this together.
      flags: this learner's flags.
      played_steps: those of this learner's batch; None: it has no batch.
    """
    # A batch may consist of resets: 0 means none. Every number is exact, because only one learner
    # adds to it.
    batches = np.zeros(group.size, np.float32)
    batches[group.rank] = 0 if played_steps is None else played_steps + 1
    with tf.device("CPU"):
        own = tf.constant(np.concatenate([np.array(flags, np.float32), batches]))
        sums = np.asarray(group.sum(own, name="signals"))
    group_flags, batches = np.split(sums, [len(flags)])
    steps = [int(steps) - 1 if steps > 0 else None for steps in batches]
    return ControlFlags(*(bool(flag > 0) for flag in group_flags)), steps


class Peers:
    """Agrees with the other learners on each update, and tracks what this learner waits for.

    The training loop calls `wait_s`, `agree`, `steps` and `works` in turn, then the learner calls
    `ends`. Other threads call the other methods.

    Args:
      group: the group of learners.
      clock: returns the time in seconds.
    """

    def __init__(self, group: LearnerGroup, clock: Callable[[], float] = time.monotonic) -> None:
        self.group = group
        self._clock = clock
        self._activity: tuple[Literal["waits", "meets", "works"], float] = ("waits", clock())
        self._hung_s = FIRST_HUNG_S
        # By rank: which learner has a batch now. The first call of `wait_s` starts the wait,
        # because learners compile before it.
        self._has_batch = [True] * group.size
        self._batch_at = clock()  # when this learner had its last one

    def wait_s(self) -> float:
        """Starts the wait for a batch; returns after how many seconds to `agree` without one."""
        self._note_batch()
        others_continue = any(self._has_batch) and not self._is_patient()
        self._has_batch = [False] * self.group.size
        self._activity = ("waits", self._clock())
        return 0.0 if others_continue else MEET_S

    def agree(
        self, flags: ControlFlags, played_steps: int | None
    ) -> tuple[ControlFlags, list[int | None]]:
        """Exchanges flags and decides on an update. All learners must call it together.

        The group updates once each learner has a batch, or has had none for PATIENCE_S.

        Args:
          flags: this learner's flags.
          played_steps: the steps of this learner's batch that were played; None: it has no batch.

        Returns:
          (the group's flags; by rank, the played steps of each learner's batch for the next update,
          None: it has none). If none has one, there is no update now.
        """
        has_batch = played_steps is not None
        self._has_batch[self.group.rank] = has_batch
        self._activity = ("meets", self._clock())
        own = flags._replace(wait=not has_batch and self._is_patient())
        agreed, batches = exchange(self.group, own, played_steps)
        self._has_batch = [steps is not None for steps in batches]
        self._note_batch()
        waits = agreed.wait and not (agreed.stop or agreed.regroup)
        return agreed, [None if waits else steps for steps in batches]

    def steps(self) -> None:
        """Notes that a gradient step is done. An update may have many."""
        self._activity = ("meets", self._clock())

    def works(self) -> None:
        """Notes that an update is done. What follows needs no other learner."""
        self._activity = ("works", self._clock())
        self._hung_s = HUNG_S

    def ends(self) -> None:
        """Notes that training is done. What follows has no time limit."""
        self._activity = ("waits", self._clock())

    def starving_s(self) -> float:
        """Returns for how many seconds this learner has had no batch; 0 while it has one."""
        if self._has_batch[self.group.rank]:
            return 0.0
        return self._clock() - self._batch_at

    def hung(self) -> str:
        """Returns what hangs, in words, if this learner takes too long for one step; else ''.

        Either it hangs itself (say, in a file system that does not answer) or it waits for another
        learner that hangs. Horovod waits forever for a process that is alive.
        """
        activity, since = self._activity
        elapsed_s = self._clock() - since
        if activity == "waits" or self.group.size == 1 or elapsed_s < self._hung_s:
            return ""
        name = f"learner-{self.group.members[self.group.rank]}"
        if activity == "works":
            return f"{name}: has hung for {elapsed_s:.0f} s after an update"
        return f"{name}: has waited {elapsed_s:.0f} s for {self.group.others} in an update"

    def _is_patient(self) -> bool:
        return self.starving_s() < PATIENCE_S

    def _note_batch(self) -> None:
        if self._has_batch[self.group.rank]:
            self._batch_at = self._clock()
