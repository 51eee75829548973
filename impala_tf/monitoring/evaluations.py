"""evaluation.csv: the results of --eval_every, a row for each level and checkpoint."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from impala_tf.monitoring.metrics import EVALUATION_METRICS, Row
from impala_tf.monitoring.rows import is_normalized
from impala_tf.monitoring.status_file import EvaluationStatus
from impala_tf.monitoring.wandb_writer import WandbWriter
from impala_tf.monitoring.writers import CsvWriter, TensorBoardWriter

_GROUP = "eval"
_SHOWN = (
    "return_mean",
    "return_std",
    "return_min",
    "return_max",
    "length_mean",
    "normalized_return_mean",
)
_MEANS = ("return_mean", "normalized_return_mean")  # also averaged over several levels


class EvaluationRows:
    """Writes the results to evaluation.csv, TensorBoard and W&B.

    It is a writer (see `writers`), because the file is rewound when a run resumes.

    Args:
      path: the path of evaluation.csv.
      tensorboard: shows the results as eval/return_mean and so on.
      wandb: shows them likewise; None: it is off.

    Attributes:
      newest: the newest result since the start or resume, for displays; None if there is none.
    """

    def __init__(
        self, path: Path, tensorboard: TensorBoardWriter, wandb: WandbWriter | None = None
    ) -> None:
        self._file = CsvWriter(path, EVALUATION_METRICS)
        self._tensorboard, self._wandb = tensorboard, wandb
        self._frames = 0
        self.newest: EvaluationStatus | None = None

    def add(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Adds the rows of a checkpoint, one for each level.

        Raises:
          OSError: the rows cannot be written.
        """
        for row in rows:
            self._file.write(row)
        self.newest = _status(rows)
        points = _points(rows)
        self._tensorboard.add(points, _frames_of(rows[0]), _GROUP)
        if self._wandb is not None:
            named = {f"{_GROUP}/{name}": value for name, value in points.items()}
            frames = {f"{_GROUP}/environment_frames": float(rows[0]["environment_frames"])}
            self._wandb.add(named | frames, self._frames)

    def write(self, row: Row) -> None:
        """Notes the frames of a row of metrics."""
        self._frames = int(row["environment_frames"] or 0)

    def rewind(self, environment_frames: int | None) -> None:
        """Removes the rows of later checkpoints; None: a fresh run.

        Raises:
          ConfigError: as `CsvWriter.rewind` does.
        """
        self._frames = environment_frames or 0
        self._file.rewind(environment_frames)

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def _frames_of(row: Mapping[str, Any]) -> int:
    return int(row["environment_frames"])


def _points(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Returns {name: value} of a checkpoint; for several levels, each level's and some means."""
    if len(rows) == 1:
        return {name: rows[0][name] for name in _SHOWN if rows[0].get(name) is not None}
    points = {
        f"{name}/{row['level_name']}": row[name]
        for row in rows
        for name in _SHOWN
        if row.get(name) is not None
    }
    means = {name: _mean(rows, name) for name in _MEANS}
    return points | {name: mean for name, mean in means.items() if mean is not None}


def _mean(rows: Sequence[Mapping[str, Any]], name: str) -> float | None:
    values = [row.get(name) for row in rows]
    return None if None in values else statistics.fmean(v for v in values if v is not None)


def _status(rows: Sequence[Mapping[str, Any]]) -> EvaluationStatus:
    normalized = len(rows) > 1 and is_normalized(rows)
    return EvaluationStatus(
        environment_frames=_frames_of(rows[0]),
        return_mean=_mean(rows, "normalized_return_mean" if normalized else "return_mean"),
        normalized=normalized,
        episodes=int(sum(row["episodes"] for row in rows)),
        played=str(rows[0]["played"]),
        awaited=False,
    )
