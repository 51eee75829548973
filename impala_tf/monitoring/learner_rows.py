"""The rows of metrics-learners.csv: one per learner for every row of metrics.csv.

The columns do not depend on the number of learners, which may change when a run resumes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from impala_tf.monitoring.metrics import METRICS, EpisodeWindow, Row
from impala_tf.types import Episode

_RATES = ("agent_steps_per_s", "frames_per_s")
_FOUND = (
    "loss_total", "entropy", "policy_lag_mean", "policy_lag_max", "rho_clip_fraction",
    "queue_size", "learner_idle_fraction", "learner_all_reduce_fraction",
)  # fmt: skip
LEARNER_METRICS: dict[str, str] = {
    "wall_time_s": METRICS["wall_time_s"],
    "environment_frames": METRICS["environment_frames"] + ", over all learners",
    "learner": "rank of the learner that the rest of the row describes",
    "batches": "batches that it learned from since the last row",
    "agent_steps_per_s": "agent steps per second in these batches",
    "frames_per_s": "environment frames per second in these batches",
    "episodes": "whole games that its actors have finished so far",
    "episode_return_mean": "mean unclipped return of the last 100 of them",
    "episode_length_mean": "mean length of the last 100 of them, in agent steps",
    **{name: METRICS[name] for name in _FOUND},
}
"""The columns of metrics-learners.csv, in order, with their meanings."""


class LearnerRows:
    """Makes one row per learner from their parts (`recorder.RunRecorder.interval`)."""

    def __init__(self) -> None:
        self._windows: dict[int, EpisodeWindow] = {}

    def rows(self, total: Row, parts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Returns the rows, by rank; `total` is the row of all learners together."""
        batches = sum(part["batches"] for part in parts)
        return [self._row(rank, part, total, batches) for rank, part in enumerate(parts)]

    def add_episodes(self, parts: Sequence[Mapping[str, Any]]) -> None:
        """Counts the games that each learner's actors have finished."""
        for rank, part in enumerate(parts):
            for episode in part["episodes"]:
                self._window(rank).add(Episode(*episode))

    def state(self) -> dict[str, Any]:
        """Returns the learners' episodes as JSON-able values, for a checkpoint."""
        return {str(rank): window.state() for rank, window in self._windows.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores what `state` returned; the number of learners may have changed."""
        self._windows.clear()
        for rank, window in state.items():
            self._window(int(rank)).restore(window)

    def _row(
        self, rank: int, part: Mapping[str, Any], total: Row, batches: int
    ) -> dict[str, float | int | None]:
        share = part["batches"] / batches
        found = {**part["stats"], **part}
        return {
            "wall_time_s": total["wall_time_s"],
            "environment_frames": total["environment_frames"],
            "learner": rank,
            "batches": part["batches"],
            **{name: _times(share, total[name]) for name in _RATES},
            **self._window(rank).row(),
            **{name: found.get(name) for name in _FOUND},
        }

    def _window(self, rank: int) -> EpisodeWindow:
        return self._windows.setdefault(rank, EpisodeWindow())


def _times(share: float, rate: float | int | None) -> float | None:
    return None if rate is None else share * rate
