"""evaluation.csv: the results of --eval_every, a row for each level and checkpoint."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from impala_tf.monitoring.metrics import EVALUATION_METRICS, Row
from impala_tf.monitoring.rows import is_normalized
from impala_tf.monitoring.status import EvaluationStatus
from impala_tf.monitoring.wandb_writer import WandbWriter
from impala_tf.monitoring.writers import CsvWriter, TensorBoardWriter

_GROUP = "eval"
_SHOWN = ("return_mean", "return_std", "return_min", "return_max", "length_mean",
          "normalized_return_mean")  # fmt: skip
_MEANS = ("return_mean", "normalized_return_mean")  # also averaged over several levels


class EvaluationRows:
    """Writes the results to evaluation.csv, TensorBoard and W&B.

    It is a writer (see `writers`), because the file is rewound when a run resumes. A result is
    written later than its checkpoint. So a run that resumes from a checkpoint keeps the rows of
    this checkpoint and of earlier ones, whenever they were written.

    Args:
      path: the path of evaluation.csv.
      tensorboard: shows the results as eval/return_mean and so on.
      wandb: shows them likewise; None: it is off.

    Attributes:
      newest: the newest result, for displays; None if there is none.
    """

    def __init__(
        self, path: Path, tensorboard: TensorBoardWriter, wandb: WandbWriter | None = None
    ) -> None:
        self._path = path
        self._file = CsvWriter(path, EVALUATION_METRICS)
        self._tensorboard, self._wandb = tensorboard, wandb
        self._frames = 0
        self._not_shown: list[dict[str, Any]] = []
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
        self._tensorboard.add(points, int(rows[0]["environment_frames"]), _GROUP)
        if self._wandb is not None:
            named = {f"{_GROUP}/{name}": value for name, value in points.items()}
            frames = {f"{_GROUP}/environment_frames": float(rows[0]["environment_frames"])}
            self._wandb.add(named | frames, self._frames)

    def write(self, row: Row) -> None:
        """Notes the frames of a row of metrics."""
        self._frames = int(row["environment_frames"] or 0)
        for rows in _by_checkpoint(self._not_shown):
            self._tensorboard.add(_points(rows), rows[0]["environment_frames"], _GROUP)
        self._not_shown = []

    def position(self) -> dict[str, int]:
        """Returns where the rows end, and the environment frames of the checkpoint to save."""
        return {**self._file.position(), "environment_frames": self._frames}

    def rewind(self, position: Mapping[str, int] | None) -> None:
        """Removes the rows of later checkpoints; None: a fresh run; {}: removes all.

        Raises:
          ConfigError: as `CsvWriter.rewind` does.
        """
        self._not_shown, self.newest = [], None
        if not position:
            self._file.rewind(position)
            return
        self._frames, offset = position["environment_frames"], position["offset"]
        kept = [
            (end, row) for end, row in self._rows() if row["environment_frames"] <= self._frames
        ]
        self._file.rewind({"offset": max([offset, *(end for end, _ in kept)])})
        # TensorBoard's files are cut to where they ended at the checkpoint.
        self._not_shown = [row for end, row in kept if end > offset]
        if kept:
            last = kept[-1][1]["environment_frames"]
            self.newest = _status([row for _, row in kept if row["environment_frames"] == last])

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _rows(self) -> list[tuple[int, dict[str, Any]]]:
        """Returns (the byte offset of a line's end, the row) for all complete lines."""
        try:
            header, *lines = self._path.read_bytes().splitlines(keepends=True)
        except (FileNotFoundError, ValueError):
            return []
        names, end, rows = header.decode().strip().split(","), len(header), []
        for line in lines:
            end += len(line)
            (cells,) = csv.reader([line.decode(errors="replace")])
            if len(cells) == len(names) and line.endswith(b"\n"):
                rows.append((end, _typed(dict(zip(names, cells, strict=True)))))
        return rows


def _typed(row: Mapping[str, str]) -> dict[str, Any]:
    typed: dict[str, Any] = {name: _number(text) for name, text in row.items()}
    return {**typed, "environment_frames": int(row["environment_frames"])}


def _number(text: str) -> float | str | None:
    try:
        return float(text) if text else None
    except ValueError:
        return text


def _by_checkpoint(rows: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    frames = dict.fromkeys(row["environment_frames"] for row in rows)
    return [[row for row in rows if row["environment_frames"] == count] for count in frames]


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
        environment_frames=int(rows[0]["environment_frames"]),
        return_mean=_mean(rows, "normalized_return_mean" if normalized else "return_mean"),
        normalized=normalized,
        episodes=int(sum(row["episodes"] for row in rows)),
        played=str(rows[0]["played"]),
        awaited=False,
    )
