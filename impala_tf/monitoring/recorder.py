"""Collects a learner's statistics between two rows of metrics, and writes the rows."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from impala_tf.machine.process_memory import peak_mib
from impala_tf.monitoring.learner_rows import LearnerRows
from impala_tf.monitoring.level_rows import LevelRows
from impala_tf.monitoring.metrics import EpisodeWindow, Rates
from impala_tf.monitoring.writers import CsvWriter, Writer
from impala_tf.types import ActorReport, Episode, Progress

_MAXIMA = ("policy_lag_max",)
_SHARES = ("actor_environment_fraction", "actor_inference_fraction", "actor_wait_fraction")
_MEMORY = ("learner_memory_mb", "actor_memory_mb")


class RunRecorder:
    """The statistics of one learner; rank 0's recorder also writes the rows of all.

    Args:
      writers: of the rows, keyed by the name that a checkpoint stores their position under.
      queue_size: returns how many unrolls are in the queue.
      interval_s: seconds between rows.
      learners_writer: of one row per learner, if there are several (`learner_rows`).
      levels: makes one row per level, if there are several (`level_rows`).
      levels_writer: of these rows.
      replay_steps: returns how many agent steps are in the replay, if there is one.
    """

    def __init__(
        self,
        writers: dict[str, Writer],
        queue_size: Callable[[], int],
        interval_s: float,
        learners_writer: CsvWriter | None = None,
        levels: LevelRows | None = None,
        levels_writer: CsvWriter | None = None,
        replay_steps: Callable[[], int] | None = None,
    ) -> None:
        self._writers = writers
        self._learners_writer = learners_writer
        self._files: dict[str, Writer] = dict(writers)
        if learners_writer is not None:
            self._files["learners"] = learners_writer
        self._levels = levels
        self._levels_writer = levels_writer
        if levels_writer is not None:
            self._files["levels"] = levels_writer
        self._others_positions: dict[str, dict[str, int]] = {}
        self._queue_size = queue_size
        self._replay_steps = replay_steps
        self._interval_s = interval_s
        self._window = EpisodeWindow()
        self._learner_rows = LearnerRows()
        self._lock = threading.Lock()
        self._episodes: list[Episode] = []
        self._actor_memory_mb = 0.0
        self._actor_shares: list[dict[str, float]] = []
        self._refused = self._stale = 0
        self._wall_time_s = 0.0
        self.last_row: dict[str, Any] | None = None
        self.last_learner_rows: list[dict[str, Any]] = []
        self.begin(0, 0)

    def begin(self, agent_steps: int, environment_frames: int) -> None:
        """Starts the clocks at these counts, when training starts or resumes."""
        self._rates = Rates(agent_steps, environment_frames)
        self._resumed_at = time.monotonic() - self._wall_time_s
        self._begin_interval()

    def _begin_interval(self) -> None:
        self._began_at = time.monotonic()
        self._idle_s = 0.0
        self._all_reduce_s: float | None = None
        self._stats: list[dict[str, float]] = []

    def record_episodes(self, episodes: list[Episode]) -> None:
        """Takes finished games; called from the transport's threads."""
        with self._lock:
            self._episodes += episodes

    def record_actor(self, report: ActorReport) -> None:
        """Takes what an actor tells with an unroll; called from the transport's threads."""
        shares = (report.environment_fraction, report.inference_fraction, report.push_wait_fraction)
        with self._lock:
            self._actor_memory_mb = max(self._actor_memory_mb, report.memory_mb)
            if report.agent_steps_per_s > 0:  # before its second unroll, it cannot tell a rate
                self._actor_shares.append(dict(zip(_SHARES, shares, strict=True)))

    def record_refused(self, num_unrolls: int) -> None:
        """Takes unrolls that were refused; called from the transport's threads."""
        with self._lock:
            self._refused += num_unrolls

    def record_stale(self, num_unrolls: int) -> None:
        """Takes unrolls that came too late to be learned from; called from several threads."""
        with self._lock:
            self._stale += num_unrolls

    def record_update(self, stats: Any, idle_s: float, all_reduce_s: float | None = None) -> None:
        """Takes what is known of an update.

        Args:
          stats: a NamedTuple; None if this learner had no batch for it: it is still waiting.
          idle_s: seconds waited for its batch.
          all_reduce_s: seconds in its all-reduces; None: this learner is alone.
        """
        self._idle_s += idle_s
        if all_reduce_s is not None:
            self._all_reduce_s = (self._all_reduce_s or 0.0) + all_reduce_s
        if stats is None:
            return
        self._stats.append({name: float(value) for name, value in stats._asdict().items()})

    def row_due(self) -> bool:
        """Whether the interval is over."""
        return time.monotonic() - self._began_at >= self._interval_s

    def interval(self) -> dict[str, Any]:
        """Returns this learner's part of the next row, JSON-able, and starts a new interval."""
        with self._lock:
            episodes, self._episodes = self._episodes, []
            actor_memory_mb, refused, stale = self._actor_memory_mb, self._refused, self._stale
            actor_shares, self._actor_shares = self._actor_shares, []
        elapsed = max(time.monotonic() - self._began_at, 1e-9)
        part = {
            "batches": len(self._stats),
            "stats": _reduce(self._stats),
            "episodes": [list(episode) for episode in episodes],
            "queue_size": self._queue_size(),
            "learner_idle_fraction": min(1.0, self._idle_s / elapsed),
            "learner_all_reduce_fraction": None
            if self._all_reduce_s is None
            else min(1.0, self._all_reduce_s / elapsed),
            "learner_memory_mb": peak_mib(),
            "actor_memory_mb": actor_memory_mb or None,
            "actor_shares": _reduce(actor_shares),
            "unrolls_refused": refused,
            "unrolls_stale": stale,
            "replay_steps": None if self._replay_steps is None else self._replay_steps(),
        }
        self._begin_interval()
        return part

    def write_row(self, intervals: list[dict[str, Any]], progress: Progress) -> None:
        """Writes a row from all learners' parts, unless there was no update since the last row."""
        for part in intervals:
            for episode in part["episodes"]:
                self._window.add(Episode(*episode))
        self._learner_rows.add_episodes(intervals)
        if self._levels is not None:
            self._levels.add_episodes(intervals)
        stats = [part["stats"] for part in intervals if part["stats"]]
        if not stats:
            return
        self._wall_time_s = time.monotonic() - self._resumed_at
        row = {
            "wall_time_s": self._wall_time_s,
            **progress._asdict(),
            "queue_size": sum(part["queue_size"] for part in intervals),
            "unrolls_refused": sum(part["unrolls_refused"] for part in intervals),
            "unrolls_stale": sum(part["unrolls_stale"] for part in intervals),
            "replay_steps": _largest([part.get("replay_steps") for part in intervals]),
            "learner_idle_fraction": float(
                np.mean([part["learner_idle_fraction"] for part in intervals])
            ),
            "learner_all_reduce_fraction": _mean(
                [part.get("learner_all_reduce_fraction") for part in intervals]
            ),
            **{name: _largest([part.get(name) for part in intervals]) for name in _MEMORY},
            **_reduce([part["actor_shares"] for part in intervals if part["actor_shares"]]),
            **self._rates.row(progress.agent_steps, progress.environment_frames),
            **self._window.row(),
            **_reduce(stats),
        }
        self.last_row = row
        for writer in self._writers.values():
            writer.write(row)
        if self._levels is not None and self._levels_writer is not None:
            for level_row in self._levels.rows(row):
                self._levels_writer.write(level_row)
        if self._learners_writer is not None:
            self.last_learner_rows = self._learner_rows.rows(row, intervals)
            for learner_row in self.last_learner_rows:
                self._learners_writer.write(learner_row)

    def state(self) -> dict[str, Any]:
        """Returns clocks, episodes and the writers' positions, for a checkpoint."""
        return {
            "wall_time_s": self._wall_time_s,
            "episodes": self._window.state(),
            "learner_episodes": self._learner_rows.state(),
            "level_episodes": [] if self._levels is None else self._levels.state(),
            "positions": {
                **self._others_positions,
                **{name: writer.position() for name, writer in self._files.items()},
            },
        }

    def restore(self, state: dict[str, Any] | None) -> None:
        """Restores what `state` returned and removes rows written later; None: a fresh run.

        Raises:
          ConfigError: a file does not fit the state.
        """
        positions = {} if state is None else dict(state["positions"])
        for name, writer in self._files.items():
            writer.rewind(positions.pop(name, None))
        # A run of several learners may resume with one, and later with several again: keep the
        # position of the file that this run does not write.
        self._others_positions = positions
        if state is not None:
            self._wall_time_s = state["wall_time_s"]
            self._window.restore(state["episodes"])
            self._learner_rows.restore(state.get("learner_episodes", {}))
            if self._levels is not None:
                self._levels.restore(state.get("level_episodes", []))

    def close(self) -> None:
        """Closes the files."""
        for writer in self._files.values():
            writer.close()


def _largest(values: list[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _reduce(rows: list[dict[str, float]]) -> dict[str, float]:
    """Returns the mean of each column (or its maximum, for _MAXIMA); {} if there are no rows."""
    if not rows:
        return {}
    return {
        name: float((np.max if name in _MAXIMA else np.mean)([row[name] for row in rows]))
        for name in rows[0]
    }
