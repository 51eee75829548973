"""Reads a run's mean returns from its CSV files. If there are several levels, all count equally."""

from __future__ import annotations

import csv
import enum
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from impala_tf.logdir import Logdir, open_regular
from impala_tf.monitoring.rows import is_normalized, mean_over_levels

Row = Mapping[str, str]


class Kind(enum.Enum):
    """The kinds of a run's returns, as labels of an axis; the most informative first."""

    NORMALIZED = "mean over the levels of their normalised returns"
    LEVELS = "mean over the levels of their mean returns"
    GAMES = "mean return of the last 100 games"

    @property
    def column(self) -> str:
        """The kind's column in a CSV file."""
        names = {
            Kind.NORMALIZED: "normalized_mean_over_levels",
            Kind.LEVELS: "mean_over_levels",
            Kind.GAMES: "episode_return_mean",
        }
        return names[self]


def csv_rows(path: Path) -> list[dict[str, str]]:
    """Returns the rows of a CSV file that may still grow; [] if there is no file yet."""
    try:
        with open_regular(path) as file:
            data = file.read()
    except FileNotFoundError:
        return []
    # While a run trains, the last line may be incomplete.
    text = data[: data.rfind(b"\n") + 1].decode("utf-8")
    return list(csv.DictReader(io.StringIO(text)))


def scores(metrics: Path) -> tuple[Kind, list[tuple[Row, float]]]:
    """Returns the kind of returns by which to judge the run of a metrics.csv, and its points.

    A point is a row of metrics.csv and the mean return at that time.

    For several levels, this is the score of `LevelRows` over time. A row has a point once each
    level has finished a game. Without metrics-levels.csv beside it, as in a run of one level or for
    a copy with another name, the kind is GAMES. There are no points before the file exists.
    """
    games = [row for row in csv_rows(metrics) if row["episode_return_mean"]]
    logdir = Logdir(metrics.parent)
    moments = _levels_of(logdir.level_metrics) if metrics == logdir.metrics else {}
    if not moments:
        return Kind.GAMES, [(row, float(row["episode_return_mean"])) for row in games]
    # Levels' rows are written first, so the last moment may be incomplete and not in metrics.csv.
    pairs = [(row, moments[_moment(row)]) for row in games if _moment(row) in moments]
    pairs = [(row, levels) for row, levels in pairs if mean_over_levels(levels) is not None]
    if pairs and all(is_normalized(levels) for _, levels in pairs):
        return Kind.NORMALIZED, list(_points(pairs, "normalized_return_mean"))
    return Kind.LEVELS, list(_points(pairs, "episode_return_mean"))


def _points(pairs: Sequence[tuple[Row, Sequence[Row]]], column: str) -> Iterator[tuple[Row, float]]:
    for row, levels in pairs:
        score = mean_over_levels(levels, column)
        assert score is not None
        yield row, score.mean


def _levels_of(path: Path) -> dict[tuple[str, str], list[Row]]:
    """Returns the levels' rows of each moment that has all levels; {} if there is no file."""
    moments: dict[tuple[str, str], list[Row]] = {}
    for row in csv_rows(path):
        moments.setdefault(_moment(row), []).append(row)
    count = max((len(levels) for levels in moments.values()), default=0)
    return {moment: levels for moment, levels in moments.items() if len(levels) == count}


def _moment(row: Row) -> tuple[str, str]:
    return row["wall_time_s"], row["environment_frames"]
