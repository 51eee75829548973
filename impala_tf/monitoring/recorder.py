"""Collects a learner's statistics between two rows of metrics, and writes the rows."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from impala_tf.machine.process_memory import peak_mib
from impala_tf.monitoring.rows import EpisodeWindow, LevelRows
from impala_tf.monitoring.writers import Writer
from impala_tf.types import ActorReport, Episode, Progress

# Columns that are added up, or whose maximum is taken; all others are averaged.
_SUMS = ("queue_size", "unrolls_refused", "unrolls_stale")
_MAXIMA = ("policy_lag_max", "replay_steps", "learner_memory_mb", "actor_memory_mb")
# Columns that each learner reports in addition to the statistics of its updates.
_OF_LEARNERS = (
    *_SUMS,
    "learner_idle_fraction",
    "learner_all_reduce_fraction",
    "replay_steps",
    "learner_memory_mb",
    "actor_memory_mb",
)
# Columns that the display shows for each learner of several.
_SHOWN_OF_LEARNERS = (
    "policy_lag_mean",
    "queue_size",
    "learner_idle_fraction",
    "learner_all_reduce_fraction",
)
_STARTING = 2  # updates that belong to the start
_SHARES = ("actor_environment_fraction", "actor_inference_fraction", "actor_wait_fraction")


class RunRecorder:
    """The statistics of one learner. Rank 0's recorder also writes the rows of all learners.

    `sizes` tells the columns queue_size and, if there is a replay, replay_steps.
    `level_rows` writes a row per level; `files` have other rows, and go back with the run when it
    resumes. `info_metrics` are the names of `Episode.info`. `members` are the numbers of the
    learners, by rank; (): they equal the ranks.
    """

    def __init__(
        self,
        writers: dict[str, Writer],
        sizes: Mapping[str, Callable[[], int]],
        interval_s: float,
        level_rows: LevelRows | None = None,
        files: Sequence[Writer] = (),
        info_metrics: Sequence[str] = (),
        members: Sequence[int] = (),
    ) -> None:
        self._writers = writers
        self._level_rows = level_rows
        self._files = [*writers.values(), *files]
        self._members = members
        self._sizes = sizes
        self._interval_s = interval_s
        self.window = EpisodeWindow(info_metrics)
        """The finished games of all learners, at rank 0."""
        self._lock = threading.Lock()
        self._episodes: list[Episode] = []
        self._actor_memory_mb = 0.0
        self._actor_shares: list[dict[str, float]] = []
        self._refused = self._stale = 0
        self._updates_skipped = 0  # at the last row
        self._wall_time_s = 0.0
        self.last_row: dict[str, Any] | None = None
        self.last_learner_rows: list[dict[str, Any]] = []
        """What the display shows of each learner; [] if there is only one."""
        self.begin(0, 0)

    def begin(self, agent_steps: int, environment_frames: int) -> None:
        """Starts the clocks at these counts. Call it when training starts or resumes."""
        self._measured = (time.monotonic(), agent_steps, environment_frames)
        self._starting = _STARTING
        self._resumed_at = time.monotonic() - self._wall_time_s
        self._begin_interval()

    def _begin_interval(self) -> None:
        self._began_at = time.monotonic()
        self._idle_s = 0.0
        self._all_reduce_s: float | None = None
        self._stats: list[dict[str, float]] = []

    def record_episodes(self, episodes: list[Episode]) -> None:
        """Records finished games. Called from the transport's threads."""
        with self._lock:
            self._episodes += episodes

    def record_actor(self, report: ActorReport) -> None:
        """Records the report of an actor. Called from the transport's threads."""
        shares = (report.environment_fraction, report.inference_fraction, report.push_wait_fraction)
        with self._lock:
            self._actor_memory_mb = max(self._actor_memory_mb, report.memory_mb)
            if report.agent_steps_per_s > 0:  # unknown before an actor's second unroll
                self._actor_shares.append(dict(zip(_SHARES, shares, strict=True)))

    def record_refused(self, num_unrolls: int) -> None:
        """Counts refused unrolls. Called from the transport's threads."""
        with self._lock:
            self._refused += num_unrolls

    def record_stale(self, num_unrolls: int) -> None:
        """Counts unrolls that came too late to be learned from. Called from several threads."""
        with self._lock:
            self._stale += num_unrolls

    @property
    def wall_time_s(self) -> float:
        """Seconds of training so far, as in the rows."""
        return time.monotonic() - self._resumed_at

    def record_update(
        self,
        stats: Any,
        idle_s: float,
        all_reduce_s: float | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Records an update: its statistics, None if this learner had none, and seconds of waiting.

        `all_reduce_s` is None if there is only one learner. Rates are measured from the second
        update with `progress` on: what actors and TensorFlow need at the start is no rate of the
        run.
        """
        self._idle_s += idle_s
        if all_reduce_s is not None:
            self._all_reduce_s = (self._all_reduce_s or 0.0) + all_reduce_s
        if stats is not None:
            self._stats.append({name: float(value) for name, value in stats._asdict().items()})
        if self._starting and progress is not None:
            self._starting -= 1
            self._measured = (time.monotonic(), progress.agent_steps, progress.environment_frames)
            self._began_at, self._idle_s, self._all_reduce_s = time.monotonic(), 0.0, None

    def row_due(self) -> bool:
        """Returns whether the interval is over. The first one begins after the start."""
        return not self._starting and time.monotonic() - self._began_at >= self._interval_s

    def interval(self) -> dict[str, Any]:
        """Starts a new interval; returns this learner's part of the next row, JSON-able."""
        with self._lock:
            episodes, self._episodes = self._episodes, []
            actor_memory_mb, refused, stale = self._actor_memory_mb, self._refused, self._stale
            actor_shares, self._actor_shares = self._actor_shares, []
        elapsed = max(time.monotonic() - self._began_at, 1e-9)
        part = {
            "batches": len(self._stats),
            "stats": _reduce(self._stats),
            "episodes": [list(episode) for episode in episodes],
            "learner_idle_fraction": min(1.0, self._idle_s / elapsed),
            "learner_all_reduce_fraction": None
            if self._all_reduce_s is None
            else min(1.0, self._all_reduce_s / elapsed),
            "learner_memory_mb": peak_mib(),
            "actor_memory_mb": actor_memory_mb or None,
            "actor_shares": _reduce(actor_shares),
            "unrolls_refused": refused,
            "unrolls_stale": stale,
            "replay_steps": None,
            **{name: size() for name, size in self._sizes.items()},
        }
        self._begin_interval()
        return part

    def write_row(self, intervals: list[dict[str, Any]], progress: Progress) -> None:
        """Writes a row from all learners' parts, unless there was no update since the last row.

        If all updates were skipped, the row has no statistics, but the number of skipped updates.
        """
        for part in intervals:
            for episode in map(Episode._make, part["episodes"]):
                self.window.add(episode)
                if self._level_rows is not None:
                    self._level_rows.add(episode)
        stats = [part["stats"] for part in intervals if part["stats"]]
        if not stats and progress.updates_skipped == self._updates_skipped:
            return
        self._updates_skipped = progress.updates_skipped
        self._wall_time_s = self.wall_time_s
        row = {
            "wall_time_s": self._wall_time_s,
            **progress._asdict(),
            **_reduce([{name: part[name] for name in _OF_LEARNERS} for part in intervals]),
            **_reduce([part["actor_shares"] for part in intervals if part["actor_shares"]]),
            **self._rates(progress),
            **self.window.row(),
            **_reduce(stats),
        }
        self.last_row = row
        if len(intervals) > 1:
            batches = sum(part["batches"] for part in intervals)
            per_batch = (row["agent_steps_per_s"] or 0.0) / max(1, batches)
            numbers = self._members or range(len(intervals))
            self.last_learner_rows = [
                {
                    "learner": number,
                    "agent_steps_per_s": part["batches"] * per_batch,
                    **{name: {**part["stats"], **part}.get(name) for name in _SHOWN_OF_LEARNERS},
                }
                for number, part in zip(numbers, intervals, strict=True)
            ]
        if self._level_rows is not None:  # first, because callbacks may use the levels' rows
            self._level_rows.write(row)
        for writer in self._writers.values():
            writer.write(row)

    def _rates(self, progress: Progress) -> dict[str, float | None]:
        """Returns what was done per second since the last call; None if nothing was."""
        before_s, *before = self._measured
        counts = progress.agent_steps, progress.environment_frames
        self._measured = (time.monotonic(), *counts)
        elapsed_s = self._measured[0] - before_s
        is_known = elapsed_s > 0 and counts[0] != before[0]
        names = ("agent_steps_per_s", "frames_per_s")
        return {
            name: (now - then) / elapsed_s if is_known else None
            for name, now, then in zip(names, counts, before, strict=True)
        }

    def state(self) -> dict[str, Any]:
        """Returns clocks and episodes, for a checkpoint."""
        return {
            "wall_time_s": self._wall_time_s,
            "episodes": self.window.state(),
            "level_episodes": None if self._level_rows is None else self._level_rows.state(),
        }

    def restore(self, state: dict[str, Any] | None, environment_frames: int | None = None) -> None:
        """Restores what `state` returned, and removes rows after the checkpoint's frames.

        None: a fresh run. Raises ConfigError: a file is not this run's.
        """
        for writer in self._files:
            writer.rewind(environment_frames)
        if state is not None:
            self._wall_time_s = state["wall_time_s"]
            self.window.restore(state["episodes"])
            if self._level_rows is not None:
                self._level_rows.restore(state["level_episodes"])

    def close(self) -> None:
        """Closes the files."""
        for writer in self._files:
            writer.close()


def _reduce(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Reduces each column to one number, ignoring None; {} if there are no rows."""
    return {name: _reduced(name, [row[name] for row in rows]) for name in rows[0]} if rows else {}


def _reduced(name: str, column: list[float | None]) -> float | None:
    known = [value for value in column if value is not None]
    if not known:
        return None
    if name in _SUMS:
        return sum(known)
    return max(known) if name in _MAXIMA else float(np.mean(known))
