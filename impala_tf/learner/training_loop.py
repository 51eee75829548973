"""The training loop: feeds batches to a learner, and says when rows and checkpoints are due."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

from impala_tf.agents.n_step_returns import played_steps
from impala_tf.learner.arrivals import Batches
from impala_tf.learner.peers import ControlFlags, Peers
from impala_tf.learner.update import Learner, NotFiniteError
from impala_tf.monitoring.recorder import RunRecorder
from impala_tf.types import Sent

_RETRY_S = 10.0  # after a checkpoint that failed
# The last checkpoint has no later one. Other learners and a Ctrl-C wait for it, so retry sooner.
_LAST_TRIES = 15
_LAST_RETRY_S = 2.0


class Follower(Protocol):
    """What follows from updates."""

    def follow_update(self, stats: Any) -> None:
        """Publishes the parameters. Called after every update, with its statistics."""

    def write_row(self, intervals: list[dict[str, Any]]) -> None:
        """Writes a row from all learners' parts. Called on rank 0."""

    def save(self) -> bool:
        """Writes a checkpoint; returns whether that worked. Called on rank 0."""


class TrainingLoop:
    """Feeds batches to a learner until the run is done or a learner asks to stop.

    Args:
      learner: the learner to train.
      recorder: records statistics.
      peers: the learners that run this loop together.
      follower: does what follows from updates.
      checkpoint_interval_s: seconds between checkpoints.
      clock: returns the time in seconds.

    Attributes:
      updated_at: when the last gradient step was taken, by the clock; None before the first.
      regroups: whether the loop ended so that a different group of learners can resume.
    """

    def __init__(
        self,
        learner: Learner,
        recorder: RunRecorder,
        peers: Peers,
        follower: Follower,
        checkpoint_interval_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._learner, self._recorder = learner, recorder
        self._peers, self._group = peers, peers.group
        self._follower, self._clock = follower, clock
        self._checkpoint_interval_s = checkpoint_interval_s
        self._saved_at = clock()
        self.updated_at: float | None = None
        self.regroups = False

    def run(
        self,
        batches: Batches[Sent],
        stop_requested: Callable[[], bool],
        regroup_requested: Callable[[], bool] = lambda: False,
    ) -> None:
        """Trains. Unless an error ends the loop, it writes a last row and a last checkpoint.

        Args:
          batches: this learner's batches.
          stop_requested: returns whether to stop; called before every update.
          regroup_requested: returns whether to end so that a different group of learners can
            resume; called before every update.
        """
        batch: Sent | None = None
        idle_s = 0.0
        stop = False
        while not (stop or self._learner.done):
            if batch is None:
                asked_at = self._clock()
                batch = batches.get(self._peers.wait_s())
                idle_s += self._clock() - asked_at
            own_flags = self._control_flags(stop_requested() or batches.closed, regroup_requested())
            own_steps = None if batch is None else played_steps(batch)
            flags, played = self._peers.agree(own_flags, own_steps)
            if any(steps is not None for steps in played):
                self._update(batch, played, idle_s, flags)
                batch, idle_s = None, 0.0
            stop = flags.stop or flags.regroup
            self.regroups = flags.regroup and not (flags.stop or self._learner.done)
        self._peers.works()
        self._write_row()
        for _ in range(_LAST_TRIES):
            if self._checkpoint():
                break
            time.sleep(_LAST_RETRY_S)

    def _update(
        self, batch: Sent | None, played: list[int | None], idle_s: float, flags: ControlFlags
    ) -> None:
        learner = self._learner
        try:
            stats = learner.update(batch, played, self._note_step)
        except NotFiniteError:
            self._write_row()  # shows the skipped updates; all learners raise at the same step
            raise
        self._peers.works()
        self._recorder.record_update(stats, idle_s, learner.all_reduce_s, learner.progress)
        self._follower.follow_update(stats)
        if flags.write_row or flags.checkpoint:
            self._write_row()  # before each checkpoint, which stores where the rows end
        if flags.checkpoint:
            self._checkpoint()

    def _note_step(self) -> None:
        self.updated_at = self._clock()
        self._peers.steps()

    def _control_flags(self, stop: bool, regroup: bool) -> ControlFlags:
        leads = self._group.rank == 0
        return ControlFlags(
            stop,
            write_row=leads and self._recorder.row_due(),
            checkpoint=leads and self._clock() - self._saved_at >= self._checkpoint_interval_s,
            regroup=regroup,
        )

    def _write_row(self) -> None:
        intervals = self._group.gather(self._recorder.interval())
        if self._group.rank == 0:
            self._follower.write_row(intervals)

    def _checkpoint(self) -> bool:
        """Writes a checkpoint on rank 0; returns whether that worked, as far as this rank knows."""
        saved = self._group.rank != 0 or self._follower.save()
        # Retry a failed one soon.
        retry_s = max(0.0, self._checkpoint_interval_s - _RETRY_S)
        self._saved_at = self._clock() - (0.0 if saved else retry_s)
        return saved
