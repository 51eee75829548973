"""The training loop: feeds batches to a learner, publishes parameters, saves checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from impala_tf.agents.returns import played_steps
from impala_tf.learner.peers import ControlFlags, Peers
from impala_tf.learner.unroll_queue import Batches
from impala_tf.learner.update import Learner, NotFiniteError
from impala_tf.monitoring.recorder import RunRecorder
from impala_tf.types import Sent

_RETRY_S = 10.0  # after a checkpoint that failed
# The last checkpoint has no later one. Other learners and a Ctrl-C wait for it, so retry sooner.
_LAST_TRIES = 15
_LAST_RETRY_S = 2.0


class TrainingLoop:
    """Feeds batches to a learner until the run is done or a learner asks to stop.

    Args:
      learner: the learner to train.
      publish: called with (parameter_version, arrays) after every update.
      recorder: records statistics and writes rows.
      save: writes a checkpoint; called only on rank 0.
      peers: the learners that run this loop together.
      checkpoint_interval_s: seconds between checkpoints.
      attempt: takes the name of what is written; returns a context that may suppress OSErrors (see
        `monitoring.storage`).
      clock: returns the time in seconds.
      on_update: called with the statistics of every update.

    Attributes:
      regroups: whether the loop ended so that a different group of learners can resume.
    """

    def __init__(
        self,
        learner: Learner,
        publish: Callable[[int, list[np.ndarray]], None],
        recorder: RunRecorder,
        save: Callable[[], None],
        peers: Peers,
        checkpoint_interval_s: float,
        attempt: Callable[[str], AbstractContextManager[None]] = lambda what: nullcontext(),
        clock: Callable[[], float] = time.monotonic,
        on_update: Callable[[Any], None] = lambda stats: None,
    ) -> None:
        self._learner = learner
        self._publish = publish
        self._recorder = recorder
        self._save = save
        self._peers = peers
        self._group = peers.group
        self._checkpoint_interval_s = checkpoint_interval_s
        self._attempt = attempt
        self._clock = clock
        self._on_update = on_update
        self._saved_at = clock()
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
            own_flags = self._control_flags(stop_requested() or batches.closed)
            own_flags = own_flags._replace(regroup=regroup_requested())
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
        self,
        batch: Sent | None,
        played: list[int | None],
        idle_s: float,
        flags: ControlFlags,
    ) -> None:
        learner = self._learner
        try:
            stats = learner.update(batch, played, self._peers.steps)
        except NotFiniteError:
            self._write_row()  # shows the skipped updates; all learners raise at the same step
            raise
        self._peers.works()
        self._recorder.record_update(stats, idle_s, learner.all_reduce_s, learner.progress)
        self._publish(learner.parameter_version, learner.parameters())
        self._on_update(stats)
        if flags.write_row or flags.checkpoint:
            self._write_row()  # before each checkpoint, which stores where the rows end
        if flags.checkpoint:
            self._checkpoint()

    def _control_flags(self, stop: bool) -> ControlFlags:
        if self._group.rank != 0:
            return ControlFlags(stop, write_row=False, checkpoint=False)
        since = self._clock() - self._saved_at
        return ControlFlags(stop, self._recorder.row_due(), since >= self._checkpoint_interval_s)

    def _write_row(self) -> None:
        intervals = self._group.gather(self._recorder.interval())
        if self._group.rank == 0:
            with self._attempt("metrics"):
                self._recorder.write_row(intervals, self._learner.progress)

    def _checkpoint(self) -> bool:
        """Writes a checkpoint on rank 0; returns whether that worked, as far as this rank knows."""
        saved = self._group.rank != 0
        if self._group.rank == 0:
            with self._attempt("a checkpoint"):
                self._save()
                saved = True
        # Retry a failed one soon.
        retry_s = max(0.0, self._checkpoint_interval_s - _RETRY_S)
        self._saved_at = self._clock() - (0.0 if saved else retry_s)
        return saved
