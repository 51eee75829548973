"""The evaluation of an agent that learned several levels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from impala_tf.config import EnvironmentConfig
from impala_tf.environments import scores


def report(
    levels: Sequence[EnvironmentConfig], summaries: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Returns what evaluation.json says about each level, and about all of them.

    Args:
      levels: with their flags.
      summaries: of the games on each (`play.summary`).

    Returns:
      {"levels": [{"level_name", "normalized_mean" if published, ...}], and, if all levels have
      published scores, "normalized": {"mean", "median", "capped_mean", "capped_median"}}.
    """
    each = []
    for level, found in zip(levels, summaries, strict=True):
        row = {"level_name": level.level_name, **found}
        if scores.score_range(level) is not None:
            row["normalized_mean"] = scores.normalized(level, found["mean"])
        each.append(row)
    result: dict[str, Any] = {"levels": each}
    normalized = [row["normalized_mean"] for row in each if "normalized_mean" in row]
    if len(normalized) == len(each):
        result["normalized"] = {
            "mean": scores.mean(normalized),
            "median": scores.median(normalized),
            "capped_mean": scores.mean(normalized, capped=True),
            "capped_median": scores.median(normalized, capped=True),
        }
    return result


def table(found: dict[str, Any]) -> Table:
    """Returns the report as a table for a terminal."""
    drawn = Table(box=None)
    drawn.add_column("level")
    for name in ("games", "mean return", "median", "normalised"):
        drawn.add_column(name, justify="right")
    for row in found["levels"]:
        normalized = row.get("normalized_mean")
        drawn.add_row(
            row["level_name"],
            str(row["num_episodes"]),
            f"{row['mean']:.2f}",
            f"{row['median']:.2f}",
            "" if normalized is None else f"{normalized:.3f}",
        )
    for name, value in found.get("normalized", {}).items():
        drawn.add_row(f"{name.replace('_', ' ')} of all", "", "", "", f"{value:.3f}")
    return drawn
