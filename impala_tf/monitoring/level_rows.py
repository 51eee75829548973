"""The rows of metrics-levels.csv: one per level for every row of metrics.csv.

For agents that learn several levels at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from impala_tf.monitoring.metrics import METRICS, EpisodeWindow, Row
from impala_tf.types import Episode

LEVEL_METRICS: dict[str, str] = {
    "wall_time_s": METRICS["wall_time_s"],
    "environment_frames": METRICS["environment_frames"] + ", over all levels",
    "level": "index of the level in --level_name, from 0",
    "episodes": "whole games of this level that have finished so far",
    "episode_return_mean": "mean unclipped return of the last 100 of them",
    "episode_length_mean": "mean length of the last 100 of them, in agent steps",
    "normalized_return_mean": "the mean return between random play (0) and a human's, or the best "
    "possible one on Procgen (1); empty if none is published",
}
"""The columns of metrics-levels.csv, in order, with their meanings."""


class LevelRows:
    """Makes one row per level.

    Args:
      num_levels: how many the agent learns.
      normalize: maps (index, return) to the normalised return; None if none is published.
    """

    def __init__(self, num_levels: int, normalize: Callable[[int, float], float | None]) -> None:
        self._windows = [EpisodeWindow() for _ in range(num_levels)]
        self._normalize = normalize

    def add_episodes(self, parts: Sequence[Mapping[str, Any]]) -> None:
        """Counts the games in all learners' parts (`recorder.RunRecorder.interval`)."""
        for part in parts:
            for episode in part["episodes"]:
                found = Episode(*episode)
                self._windows[found.level].add(found)

    def rows(self, total: Row) -> list[dict[str, float | int | None]]:
        """Returns the rows, by level; `total` is the row of all levels together."""
        return [self._row(index, total) for index in range(len(self._windows))]

    def state(self) -> list[dict[str, Any]]:
        """Returns the levels' episodes as JSON-able values, for a checkpoint."""
        return [window.state() for window in self._windows]

    def restore(self, state: Sequence[Mapping[str, Any]]) -> None:
        """Restores what `state` returned."""
        for window, found in zip(self._windows, state, strict=False):
            window.restore(found)

    def _row(self, index: int, total: Row) -> dict[str, float | int | None]:
        found = self._windows[index].row()
        mean = found["episode_return_mean"]
        return {
            "wall_time_s": total["wall_time_s"],
            "environment_frames": total["environment_frames"],
            "level": index,
            **found,
            "normalized_return_mean": None if mean is None else self._normalize(index, mean),
        }
