"""The loop that feeds batches to a learner, publishes its parameters, and writes what it finds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import numpy as np

from impala_tf.learner.group import LearnerGroup
from impala_tf.learner.signals import ControlFlags, exchange
from impala_tf.learner.update import Learner
from impala_tf.types import Sent


class Recorder(Protocol):
    """Where statistics go (see `monitoring.recorder.RunRecorder`)."""

    def record_update(self, stats: Any, idle_s: float, all_reduce_s: float | None) -> None:
        """Takes an update's statistics, if any, and the seconds for a batch and in all-reduces."""

    def row_due(self) -> bool:
        """Whether a row of metrics should be written now."""

    def interval(self) -> dict[str, Any]:
        """Returns this learner's part of the next row and starts a new interval."""

    def write_row(self, intervals: list[dict[str, Any]], learner: Learner) -> None:
        """Writes a row from all learners' parts."""


_NO_MORE: Any = object()
_RETRY_S = 10.0


class TrainingLoop:
    """Feeds batches to a learner until the run is done or a learner asks to stop.

    Args:
      learner: what is trained.
      publish: takes (parameter_version, arrays) after every update.
      recorder: takes statistics.
      save: writes a checkpoint; called only on rank 0.
      group: the learners that run this loop together.
      checkpoint_interval_s: seconds between checkpoints.
      attempt: a context that may swallow the OSErrors of what it names (see `monitoring.storage`).
    """

    def __init__(
        self,
        learner: Learner,
        publish: Callable[[int, list[np.ndarray]], None],
        recorder: Recorder,
        save: Callable[[], None],
        group: LearnerGroup,
        checkpoint_interval_s: float,
        attempt: Callable[[str], AbstractContextManager[None]] = lambda what: nullcontext(),
    ) -> None:
        self._learner = learner
        self._publish = publish
        self._recorder = recorder
        self._save = save
        self._group = group
        self._checkpoint_interval_s = checkpoint_interval_s
        self._attempt = attempt
        self._saved_at = time.monotonic()

    def run(self, batches: Iterator[Sent | None], stop_requested: Callable[[], bool]) -> None:
        """Trains; unless an error ends it, writes a last row and a last checkpoint.

        Args:
          batches: [B, ...]; None if there is no batch and the group must not wait for one.
          stop_requested: asked before every update.
        """
        learner = self._learner
        asked_at = time.monotonic()
        while not learner.done and (batch := next(batches, _NO_MORE)) is not _NO_MORE:
            idle_s = time.monotonic() - asked_at
            own_flags = self._control_flags(stop_requested())
            flags, has_batch = exchange(self._group, own_flags, batch is not None)
            stats = learner.update(batch, has_batch)
            self._recorder.record_update(stats, idle_s, learner.all_reduce_s)
            self._publish(learner.parameter_version, learner.parameters())
            if flags.write_row or flags.checkpoint:
                self._write_row()  # with each checkpoint too: it stores where the rows end
            if flags.checkpoint:
                self._checkpoint()
            if flags.stop:
                break
            asked_at = time.monotonic()
        self._write_row()
        self._checkpoint()

    def _control_flags(self, stop: bool) -> ControlFlags:
        if self._group.rank != 0:
            return ControlFlags(stop, write_row=False, checkpoint=False)
        since = time.monotonic() - self._saved_at
        return ControlFlags(stop, self._recorder.row_due(), since >= self._checkpoint_interval_s)

    def _write_row(self) -> None:
        intervals = self._group.gather(self._recorder.interval())
        if self._group.rank == 0:
            with self._attempt("metrics"):
                self._recorder.write_row(intervals, self._learner)

    def _checkpoint(self) -> None:
        saved = False
        if self._group.rank == 0:
            with self._attempt("a checkpoint"):
                self._save()
                saved = True
        # One that failed is tried again soon.
        retry_s = max(0.0, self._checkpoint_interval_s - _RETRY_S)
        self._saved_at = time.monotonic() - (0.0 if saved else retry_s)
