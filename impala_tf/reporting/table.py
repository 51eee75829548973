"""The table of a level: the same columns in HTML and Markdown, one row per run in CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from typing import Any

from impala_tf.reporting import numbers
from impala_tf.reporting.runs import Run
from impala_tf.reporting.settings import Setting
from impala_tf.reporting.summary import (
    LevelSummary,
    SettingSummary,
    Spread,
    Target,
    decimals,
    final_return,
    leaders,
)

_RETURNS = "returns"  # the column with the kind of returns, if agents learn several levels


def table(summary: LevelSummary) -> tuple[list[str], list[list[str]]]:
    """Returns (titles, rows) of text; the first column is the setting's label.

    Columns without any figure are left out.
    """
    columns = {}
    for title, cell in _columns(summary.target).items():
        cells = [cell(row) for row in summary.rows]
        if set(cells) != {numbers.NOTHING}:
            columns[title] = cells
    return list(columns), [list(row) for row in zip(*columns.values(), strict=True)]


def best(summary: LevelSummary) -> SettingSummary | None:
    """Returns the row that is better than all others.

    None if chance can explain the difference, if a run has not finished, or if returns are means
    over the games of several levels.
    """
    if not summary.level.is_finished or summary.level.is_pooled:
        return None
    compared = [row for row in summary.rows if row.final_return is not None]
    candidates = leaders(compared, final_return)
    return candidates[0] if len(candidates) == 1 and len(compared) > 1 else None


def as_csv(summaries: Sequence[LevelSummary]) -> str:
    """Returns one row per run, with plain numbers; an unknown figure is an empty cell."""
    text = io.StringIO()
    rows = [
        _run_row(summary.target, row, run)
        for summary in summaries
        for row in summary.rows
        for run in row.setting.runs
    ]
    if not any(summary.level.has_several for summary in summaries):
        rows = [{name: row[name] for name in row if name != _RETURNS} for row in rows]
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _columns(target: Target | None) -> dict[str, Callable[[SettingSummary], str]]:
    """Returns {title: function that makes a row's cell}."""
    count, whole = numbers.count, numbers.whole
    columns: dict[str, Callable[[SettingSummary], str]] = {
        "setting": lambda row: row.setting.label,
        "seeds": lambda row: _seeds(row.setting),
        "parameters": lambda row: numbers.optional(row.exhibit.parameters, count),
        "multiply-adds per step": lambda row: numbers.optional(row.exhibit.multiply_adds, count),
        "learner memory, peak MiB": lambda row: numbers.optional(row.learner_memory_mb, whole),
        "actor memory, peak MiB": lambda row: numbers.optional(row.actor_memory_mb, whole),
        "agent steps/s": lambda row: numbers.spread(row.agent_steps_per_s, whole),
        "final return": lambda row: numbers.return_spread(row.final_return),
        "final return, IQM": lambda row: numbers.return_spread(row.final_iqm),
        "last evaluation": lambda row: numbers.return_spread(row.evaluation),
        "last evaluation, IQM": lambda row: numbers.return_spread(row.evaluation_iqm),
    }
    if target is None:
        return columns
    reached = numbers.target(target.mean_return)
    return columns | {
        f"frames to {reached}": lambda row: _reached(
            row, row.frames_to_target, numbers.count_spread
        ),
        f"minutes to {reached}": lambda row: _reached(
            row, row.minutes_to_target, lambda value: numbers.spread(value, numbers.tenths)
        ),
    }


def _seeds(setting: Setting) -> str:
    """Returns the number of runs, and the progress of unfinished ones."""
    unfinished = [run for run in setting.runs if not run.is_finished]
    if not unfinished:
        return str(len(setting.runs))
    far = ", ".join(f"{int(100 * run.share)} %" for run in unfinished)
    return f"{len(setting.runs)} ({len(unfinished)} unfinished: {far})"


def _reached(row: SettingSummary, value: Spread | None, shown: Callable[[Spread], str]) -> str:
    if value is None:
        return numbers.NOTHING if row.final_return is None else "not reached"
    of = len(row.setting.runs)
    return shown(value) if value.seeds == of else f"{shown(value)} ({value.seeds} of {of} seeds)"


def _run_row(target: Target | None, row: SettingSummary, run: Run) -> dict[str, Any]:
    frames, minutes = run.reached(target.mean_return) if target else (None, None)
    return {
        "level_name": run.level_name,
        "setting": row.setting.label,
        "agent_name": run.flags["agent_name"],
        "algorithm": run.flags["algorithm"],
        "seed": run.seed,
        "state": run.state,
        "environment_frames": run.frames,
        "minutes": _rounded(run.minutes, 2),
        "parameters": row.exhibit.parameters,
        "multiply_adds": row.exhibit.multiply_adds,
        "learner_memory_mb": _rounded(run.learner_memory_mb, 1),
        "actor_memory_mb": _rounded(run.actor_memory_mb, 1),
        "agent_steps_per_s": _rounded(run.agent_steps_per_s, 1),
        "final_return": _rounded_return(run.final_return),
        _RETURNS: run.kind.column,
        "last_evaluation": _rounded_return(run.evaluation.last_return),
        "evaluation_frames": int(run.evaluation.frames[-1]) if len(run.evaluation.frames) else None,
        "evaluation_played": run.played or None,
        "target_return": target.mean_return if target else None,
        "frames_to_target": None if frames is None else int(frames),
        "minutes_to_target": _rounded(minutes, 2),
        "protocol": run.protocol,
        "machine": run.machine,
        "git_commit": run.commit,
        "logdir": run.logdir,
    }


def _rounded_return(value: float | None) -> float | None:
    return None if value is None else round(value, max(4, decimals(value)))


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
