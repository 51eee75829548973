"""How much worse an agent plays on levels that it was not trained on (Procgen)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from impala_tf.config import EnvironmentConfig
from impala_tf.environments import procgen, scores

Summary = Mapping[str, Any]
"""What `play.summary` returns."""


def level_sets(env: EnvironmentConfig) -> dict[str, EnvironmentConfig]:
    """Returns the levels to evaluate on: "train", and "test" if there are unseen ones.

    Args:
      env: of the training.
    """
    unseen = procgen.unseen(env) if procgen.owns(env.level_name) else None
    return {"train": env, "test": unseen} if unseen else {"train": env}


def normalized_mean(env: EnvironmentConfig, summary: Summary) -> dict[str, float]:
    """Returns {"normalized_mean": the mean return in the level's published range}, or {}."""
    if scores.score_range(env) is None:
        return {}
    return {"normalized_mean": scores.normalized(env, summary["mean"])}


def report(sets: Mapping[str, EnvironmentConfig], summaries: Mapping[str, Summary]) -> Summary:
    """Returns both sets' summaries and the generalisation gap, JSON-able.

    Args:
      sets: as `level_sets` returns them, with "test".
      summaries: of each set.

    Returns:
      {"train": summary, "test": summary} with the further keys levels (text) and normalized_mean,
      and "gap" and "normalized_gap": the means of train minus those of test.
    """
    rows = {
        name: {
            "levels": procgen.level_range(env),
            **summaries[name],
            **normalized_mean(env, summaries[name]),
        }
        for name, env in sets.items()
    }
    train, test = rows["train"], rows["test"]
    gaps = {
        "gap": train["mean"] - test["mean"],
        "normalized_gap": train["normalized_mean"] - test["normalized_mean"],
    }
    return {**rows, **gaps}


def table(found: Summary) -> Table:
    """Returns a `report` as a table for terminals: a row for each set, and the gap."""
    drawn = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    drawn.add_column("")
    for heading in ("levels", "games", "mean return", "normalised"):
        drawn.add_column(heading, justify="right", no_wrap=True)
    for name in ("train", "test"):
        row = found[name]
        numbers = _numbers(row["mean"], row["normalized_mean"])
        drawn.add_row(name, row["levels"], str(row["num_episodes"]), *numbers)
    drawn.add_row("gap", "", "", *_numbers(found["gap"], found["normalized_gap"]))
    return drawn


def _numbers(mean: float, normalized: float) -> tuple[str, str]:
    return f"{mean:.2f}", f"{normalized:.3f}"
