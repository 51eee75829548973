"""Logdirs of runs that never ran, for the tests of reports."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from impala_tf import config as configs
from impala_tf.config import Given
from impala_tf.monitoring.metrics import LEVEL_METRICS

Row = Mapping[str, float]


def rows(*points: tuple[float, float, float], steps_per_frame: float = 0.25) -> list[Row]:
    """Returns rows of metrics from (frames, minutes, mean return)."""
    return [
        {
            "wall_time_s": 60 * minutes,
            "agent_steps": steps_per_frame * frames,
            "environment_frames": frames,
            "episode_return_mean": mean_return,
            "learner_memory_mb": 700 + minutes,
            "actor_memory_mb": 500 + minutes,
        }
        for frames, minutes, mean_return in points
    ]


def level_rows(
    frames: float, minutes: float, *returns: float | None, normalized: Sequence[float] = ()
) -> list[dict[str, Any]]:
    """Returns what metrics-levels.csv has at the time of one of `rows`: a row per level.

    Args:
      frames, minutes: as in `rows`.
      returns: a mean return for each level; None: none of its games has finished.
      normalized: the normalised ones, if they are published.
    """
    return [
        {
            "wall_time_s": 60 * minutes,
            "environment_frames": frames,
            "level": level,
            "level_name": f"level-{level}",
            "episodes": 0 if mean is None else 100,
            "episode_return_mean": mean,
            "normalized_return_mean": normalized[level] if normalized else None,
        }
        for level, mean in enumerate(returns)
    ]


def write_levels(path: Path, metrics: Sequence[Mapping[str, Any]]) -> None:
    """Writes the metrics-levels.csv of a logdir; `metrics` are of `level_rows`."""
    with (path / "metrics-levels.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(LEVEL_METRICS), lineterminator="\n")
        writer.writeheader()
        writer.writerows(metrics)


LEARNING = rows((0, 0, -20), (1000, 1, -10), (2000, 2, 0), (4000, 4, 20))


def write_run(path: Path, metrics: Sequence[Row] = LEARNING, **flags: Any) -> Path:
    """Writes what a run on Pong leaves behind, without checkpoints: it is done, or was stopped.

    Args:
      path: its logdir, which is made.
      metrics: the rows.
      flags: that were given; 4,000 frames if they do not say otherwise.
    """
    given = {"total_environment_frames": 4000, "logdir": str(path), **flags}
    config = configs.resolve(Given().replace(**given), "atari")
    described = {
        "flags": configs.to_dict(config),
        "sources": configs.sources(config, "atari"),
        "level": {"kind": "atari"},
        "protocol": "the usual protocol",
        "git_commit": "0123456789abcdef",
        "machine": "a fast one, 64 cores",
    }
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(described))
    with (path / "metrics.csv").open("w", newline="") as file:
        columns = list(metrics[0]) if metrics else ["environment_frames"]
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(metrics)
    frames = metrics[-1]["environment_frames"] if metrics else 0
    is_done = frames >= config.run.total_environment_frames
    status = {"state": "done" if is_done else "stopped", "updated_unix_s": 1_700_000_000.0}
    (path / "status.json").write_text(json.dumps(status))
    return path
