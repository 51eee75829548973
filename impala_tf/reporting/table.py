"""The table of a level: the same columns in HTML and Markdown, one row per run in CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from impala_tf.reporting import numbers
from impala_tf.reporting.runs import Run
from impala_tf.reporting.settings import Level, Setting
from impala_tf.reporting.summary import SettingSummary, Spread, Target, summarize, target_of


class Exhibit(NamedTuple):
    """What building and playing a setting's agent shows; None where that was not possible."""

    parameters: int | None = None  # numbers that training changes
    multiply_adds: int | None = None  # of the network for one step of one environment
    clip: bytes | None = None  # mp4
    caption: str = ""  # what the clip shows, or why there is none


class LevelSummary(NamedTuple):
    """A level with everything that a report says about it."""

    level: Level
    target: Target | None
    rows: list[SettingSummary]
    exhibits: Mapping[Setting, Exhibit]


class Column(NamedTuple):
    """A column; one in which no row has a figure is left out."""

    title: str
    cell: Callable[[SettingSummary, Exhibit], str]


def summarize_level(
    level: Level, exhibits: Mapping[Setting, Exhibit], report_return: float | None
) -> LevelSummary:
    """Returns everything about a level; `report_return` is the flag."""
    target = target_of(level, report_return)
    rows = [summarize(setting, target) for setting in level.settings]
    return LevelSummary(level, target, rows, exhibits)


def table(summary: LevelSummary) -> tuple[list[str], list[list[str]]]:
    """Returns (titles, rows) of text; the first column is the setting's label."""
    exhibits = [summary.exhibits[row.setting] for row in summary.rows]
    columns = []
    for column in _columns(summary.target):
        cells = [column.cell(row, each) for row, each in zip(summary.rows, exhibits, strict=True)]
        if column.title and set(cells) != {numbers.NOTHING}:
            columns.append((column.title, cells))
    titles = [title for title, _ in columns]
    return titles, [list(row) for row in zip(*(cells for _, cells in columns), strict=True)]


def best(summary: LevelSummary) -> SettingSummary | None:
    """Returns the row with the highest mean final return; None if there is none."""
    rows = [row for row in summary.rows if row.final_return is not None]
    return max(rows, key=lambda row: row.final_return or Spread(0.0, None, 0), default=None)


def as_csv(summaries: Sequence[LevelSummary]) -> str:
    """Returns one row per run, with plain numbers; an unknown figure is an empty cell."""
    text = io.StringIO()
    rows = [
        _run_row(summary, row.setting, run)
        for summary in summaries
        for row in summary.rows
        for run in row.setting.runs
    ]
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _columns(target: Target | None) -> list[Column]:
    reached = numbers.mean_return(target.mean_return) if target else ""
    return [
        Column("setting", lambda row, _: row.setting.label),
        Column("seeds", lambda row, _: _seeds(row.setting)),
        Column("parameters", lambda _, each: numbers.optional(each.parameters, numbers.count)),
        Column(
            "multiply-adds per step",
            lambda _, each: numbers.optional(each.multiply_adds, numbers.count),
        ),
        Column(
            "learner memory, peak MiB",
            lambda row, _: numbers.optional(row.learner_memory_mb, numbers.whole),
        ),
        Column(
            "actor memory, peak MiB",
            lambda row, _: numbers.optional(row.actor_memory_mb, numbers.whole),
        ),
        Column(
            "agent steps/s", lambda row, _: numbers.spread(row.agent_steps_per_s, numbers.whole)
        ),
        Column("final return", lambda row, _: numbers.return_spread(row.final_return)),
        Column(
            f"frames to {reached}",
            lambda row, _: _reached(row, row.frames_to_target, numbers.count_spread),
        ),
        Column(
            f"minutes to {reached}",
            lambda row, _: _reached(row, row.minutes_to_target, _minutes),
        ),
    ]


def _seeds(setting: Setting) -> str:
    """Returns how many runs there are, and how far those are that have not finished."""
    unfinished = [run for run in setting.runs if run.share < 1]
    if not unfinished:
        return str(len(setting.runs))
    far = ", ".join(f"{int(100 * run.share)} %" for run in unfinished)
    return f"{len(setting.runs)} ({len(unfinished)} unfinished: {far})"


def _reached(row: SettingSummary, value: Spread | None, shown: Callable[[Spread], str]) -> str:
    if value is None:
        return numbers.NOTHING if row.final_return is None else "not reached"
    of = len(row.setting.runs)
    return shown(value) if value.seeds == of else f"{shown(value)} ({value.seeds} of {of} seeds)"


def _minutes(value: Spread) -> str:
    return numbers.spread(value, numbers.tenths)


def _run_row(summary: LevelSummary, setting: Setting, run: Run) -> dict[str, Any]:
    exhibit, target = summary.exhibits[setting], summary.target
    frames, minutes = (run.reached(target.mean_return) if target else None) or (None, None)
    return {
        "level_name": run.level_name,
        "setting": setting.label,
        "agent_name": run.flags["agent_name"],
        "algorithm": run.flags["algorithm"],
        "seed": run.seed,
        "state": run.state,
        "environment_frames": run.frames,
        "minutes": _rounded(run.minutes, 2),
        "parameters": exhibit.parameters,
        "multiply_adds": exhibit.multiply_adds,
        "learner_memory_mb": _rounded(run.learner_memory_mb, 1),
        "actor_memory_mb": _rounded(run.actor_memory_mb, 1),
        "agent_steps_per_s": _rounded(run.agent_steps_per_s, 1),
        "final_return": _rounded(run.final_return, 4),
        "target_return": _rounded(target.mean_return if target else None, 4),
        "frames_to_target": None if frames is None else int(frames),
        "minutes_to_target": _rounded(minutes, 2),
        "machine": run.machine,
        "git_commit": run.commit,
        "logdir": run.logdir,
    }


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
