"""The contents of rows of metrics: windows of episodes, rates, and the rows of levels."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from impala_tf.monitoring.metrics import Row, info_columns
from impala_tf.monitoring.status_file import EvaluationStatus
from impala_tf.monitoring.writers import Writer
from impala_tf.types import Episode

GAMES = 100
"""The number of games of a mean return."""


class Score(NamedTuple):
    """The score that a run maximises."""

    mean: float
    games: int
    """How many games have finished; for several levels, on the level with the fewest."""


class EpisodeWindow:
    """Counts finished games and averages the last 100.

    Args:
      info_metrics: the names of `Episode.info`, whose values are also averaged.
    """

    def __init__(self, info_metrics: Sequence[str] = ()) -> None:
        self._info_metrics = info_metrics
        self._count = 0
        self._last: deque[Episode] = deque(maxlen=GAMES)

    def add(self, episode: Episode) -> None:
        """Adds a finished game."""
        self._count += 1
        score, length = float(episode.episode_return), int(episode.episode_length)
        self._last.append(Episode(score, length, info=tuple(episode.info)))

    def row(self) -> dict[str, float | int | None]:
        """Returns the episode metrics; the means are None before the first game has finished."""
        return {
            "episodes": self._count,
            "episode_return_mean": _mean([episode.episode_return for episode in self._last]),
            "episode_length_mean": _mean([episode.episode_length for episode in self._last]),
            **{
                name: _mean([episode.info[n] for episode in self._last])
                for n, name in enumerate(info_columns(self._info_metrics))
            },
        }

    @property
    def largest_return(self) -> float:
        """The largest absolute return of the last 100 games; 0 before the first."""
        return max((abs(episode.episode_return) for episode in self._last), default=0.0)

    def state(self) -> dict[str, Any]:
        """Returns the window as JSON-able values, for a checkpoint."""
        return {"count": self._count, "last": [list(episode) for episode in self._last]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores what `state` returned."""
        self._count = state["count"]
        self._last.clear()
        self._last.extend(Episode(*episode) for episode in state["last"])


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


class LevelRows:
    """metrics-levels.csv: for each row of metrics.csv a row per level, if there are several.

    `normalize` maps (index, return) to the normalised return; None if none is published.
    """

    def __init__(
        self,
        writer: Writer,
        levels: Sequence[str],
        normalize: Callable[[int, float], float | None],
    ) -> None:
        self._writer = writer
        self._levels = levels
        self._normalize = normalize
        self._windows = [EpisodeWindow() for _ in levels]
        self._last_rows: list[dict[str, Any]] = []

    def add(self, episode: Episode) -> None:
        """Adds a finished game."""
        self._windows[episode.level].add(episode)

    def write(self, total: Row) -> None:
        """Writes a row for each level. `total` is the row of the whole run."""
        self._last_rows = []
        for index, (name, window) in enumerate(zip(self._levels, self._windows, strict=True)):
            row: dict[str, Any] = {"level": index, "level_name": name, **window.row()}
            row |= {column: total[column] for column in ("wall_time_s", "environment_frames")}
            mean = row["episode_return_mean"]
            row["normalized_return_mean"] = None if mean is None else self._normalize(index, mean)
            self._last_rows.append(row)
            self._writer.write(row)

    def score(self) -> Score | None:
        """Returns the mean over the levels of the last rows; see `mean_over_levels`."""
        return mean_over_levels(self._last_rows)

    def state(self) -> list[dict[str, Any]]:
        """Returns the levels' episodes as JSON-able values, for a checkpoint."""
        return [window.state() for window in self._windows]

    def restore(self, state: Sequence[Mapping[str, Any]]) -> None:
        """Restores what `state` returned."""
        for window, saved in zip(self._windows, state, strict=True):
            window.restore(saved)


def mean_over_levels(rows: Sequence[Mapping[str, Any]], column: str = "") -> Score | None:
    """Returns the mean of the levels' mean returns; None until each level has finished a game.

    If each level has a published range, the returns are normalised, because returns of different
    levels have no common scale. It is not a mean over games, in which levels with short games would
    count more. `rows` may be those of metrics-levels.csv, as text; without `column`, the means
    depend on `is_normalized`.
    """
    games = min((int(row["episodes"]) for row in rows), default=0)
    if games == 0:
        return None
    default = "normalized_return_mean" if is_normalized(rows) else "episode_return_mean"
    return Score(statistics.fmean(float(row[column or default]) for row in rows), games)


def is_normalized(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Returns whether each level's row, as in `mean_over_levels`, has a normalised return."""
    return all(row.get("normalized_return_mean") not in (None, "") for row in rows)


_CURVES = (
    "return_mean",
    "return_std",
    "return_min",
    "return_max",
    "length_mean",
    "normalized_return_mean",
)


def evaluation_points(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Returns {name of a curve: value} of the rows of evaluation.csv that a checkpoint has.

    For several levels, these are each level's, and the means over the levels.
    """
    if len(rows) == 1:
        return {name: rows[0][name] for name in _CURVES if rows[0].get(name) is not None}
    points = {
        f"{name}/{row['level_name']}": row[name]
        for row in rows
        for name in _CURVES
        if row.get(name) is not None
    }
    means = {name: _mean_of(rows, name) for name in ("return_mean", "normalized_return_mean")}
    return points | {name: mean for name, mean in means.items() if mean is not None}


def evaluation_status(rows: Sequence[Mapping[str, Any]]) -> EvaluationStatus:
    """Returns what displays show of these rows."""
    normalized = len(rows) > 1 and is_normalized(rows)
    return EvaluationStatus(
        environment_frames=int(rows[0]["environment_frames"]),
        return_mean=_mean_of(rows, "normalized_return_mean" if normalized else "return_mean"),
        normalized=normalized,
        episodes=int(sum(row["episodes"] for row in rows)),
        played=str(rows[0]["played"]),
        awaited=False,
    )


def _mean_of(rows: Sequence[Mapping[str, Any]], name: str) -> float | None:
    values = [row.get(name) for row in rows]
    return None if None in values else statistics.fmean(v for v in values if v is not None)
