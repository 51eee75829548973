"""The documents of a report: report.html, which needs no other file, report.md and report.csv."""

from __future__ import annotations

import base64
import csv
import datetime
import io
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jinja2
import numpy as np
from markupsafe import Markup

from impala_tf import config as configs
from impala_tf.printable import printable
from impala_tf.reporting import comparison, curves, statistics
from impala_tf.reporting.comparison import Figure, Level, Setting, final_return, last_evaluation
from impala_tf.reporting.runs import Run
from impala_tf.reporting.texts import NOTHING, count, escape_in_markdown, mean_return, whole


class Exhibit(NamedTuple):
    """What is learned by building and playing a setting's agent."""

    parameters: int | None = None  # how many numbers training changes; None: it cannot be built
    clip: bytes = b""  # mp4
    caption: str = ""  # what the clip shows, or why there is none


Exhibits = Mapping[Setting, Exhibit]


def render(name: str, levels: Sequence[Level], exhibits: Exhibits, written_by: str) -> str:
    """Returns "report.html" or "report.md", which names the pictures of `picture_name`."""
    templates = jinja2.Environment(
        loader=jinja2.PackageLoader("impala_tf.reporting"),
        autoescape=True,
        finalize=escape_in_markdown if name.endswith(".md") else _in_html,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= {
        "code": lambda value: Markup(printable(str(value))),
        "base64": lambda data: base64.b64encode(data).decode("ascii"),
        "day": lambda unix_s: f"{datetime.datetime.fromtimestamp(unix_s, datetime.UTC):%-d %B %Y}",
        "mean_return": mean_return,
        "return_of_seeds": lambda setting: spread(setting.values(final_return), mean_return),
        "whole": whole,
    }
    templates.globals |= {
        "comparison": comparison,
        "comparisons": comparisons,
        "curves": curves,
        "picture_name": picture_name,
        "table": table,
    }
    return templates.get_template(name).render(
        levels=levels, exhibits=exhibits, written_by=written_by, now=time.time()
    )


def _in_html(value: Any) -> Any:
    return printable(value, "\n") if type(value) is str else value  # and not safe markup


def picture_name(level: Level) -> str:
    """Returns the file name of a level's curves, beside report.md."""
    return f"report-{configs.slug(level.name)}.svg"


def table(level: Level, exhibits: Exhibits) -> tuple[list[str], list[list[str]]]:
    """Returns (titles, rows) of text, a row per setting; the first column is its label.

    Columns without any figure are left out.
    """
    rows = [_row(setting, exhibits[setting], level.target) for setting in level.settings]
    titles = [title for title in rows[0] if any(row[title] != NOTHING for row in rows)]
    return titles, [[row[title] for title in titles] for row in rows]


def _row(setting: Setting, exhibit: Exhibit, target: float | None) -> dict[str, str]:
    """Returns {column: cell}."""
    seeds = len(setting.runs)
    unfinished = sum(not run.is_finished for run in setting.runs)

    def cell(figure: Figure, show: Callable[[list[float]], str]) -> str:
        values = setting.values(figure)
        some = f", {len(values)} of {seeds} seeds" if len(values) < seeds else ""
        return show(values) + some if values else NOTHING

    def mean(figure: Figure, show: Callable[[float], str]) -> str:
        return cell(figure, partial(spread, show=show))

    def peak(values: list[float]) -> str:
        return whole(max(values))

    def iqm(values: list[float]) -> str:
        has_middle = len(values) >= statistics.FEWEST_OF_INTERVALS
        return spread(values, mean_return, statistics.interquartile_mean) if has_middle else NOTHING

    row = {
        "setting": setting.label,
        "seeds": f"{seeds} ({unfinished} unfinished)" if unfinished else f"{seeds}",
        "parameters": NOTHING if exhibit.parameters is None else count(exhibit.parameters),
        "MiB of a learner": cell(lambda run: run.learner_memory_mb, peak),
        "of an actor": cell(lambda run: run.actor_memory_mb, peak),
        "agent steps/s": mean(lambda run: run.agent_steps_per_s, whole),
        "final return": mean(final_return, mean_return),
        "final return, IQM": cell(final_return, iqm),
        "last evaluation": mean(last_evaluation, mean_return),
    }
    if target is not None:
        minutes, shown = "{:,.1f}".format, mean_return(target)
        row |= {
            f"frames to {shown}": mean(lambda run: run.reached(target)[0], count),
            f"minutes to {shown}": mean(lambda run: run.reached(target)[1], minutes),
        }
    return row


def comparisons(level: Level) -> list[str]:
    """Returns how the setting with the highest mean compares with each other one, if it can be."""
    if not level.is_finished or not (best := comparison.leaders(level)):
        return []
    first, lines = best[0].values(final_return), []
    for setting in level.settings:
        second = setting.values(final_return)
        if setting is best[0] or min(len(first), len(second)) < statistics.FEWEST_SEEDS:
            continue
        low, high = statistics.interval(statistics.improvement, first, second)
        probability = statistics.improvement(np.array(first), np.array(second))
        lines.append(
            f"{best[0].label} over {setting.label}: probability of improvement {probability:.2f}"
            f" ({low:.2f} to {high:.2f}), p {statistics.welch_p_value(first, second):.2g}"
        )
    return lines


def as_csv(levels: Sequence[Level], exhibits: Exhibits) -> str:
    """Returns one row per run, with plain numbers; an unknown figure is an empty cell."""
    rows = [
        _csv_row(run, setting, exhibits[setting], level.target)
        for level in levels
        for setting in level.settings
        for run in setting.runs
    ]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _csv_row(run: Run, setting: Setting, exhibit: Exhibit, target: float | None) -> dict[str, str]:
    frames, minutes = run.reached(target) if target is not None else (None, None)
    row = {
        "level_name": run.level_name,
        "setting": setting.label,
        "agent_name": run.flags["agent_name"],
        "algorithm": run.flags["algorithm"],
        "seed": run.seed,
        "state": run.state,
        "environment_frames": run.frames,
        "minutes": run.minutes,
        "parameters": exhibit.parameters,
        "learner_memory_mb": run.learner_memory_mb,
        "actor_memory_mb": run.actor_memory_mb,
        "agent_steps_per_s": run.agent_steps_per_s,
        "final_return": run.curve.last_return,
        "returns": run.kind.column,
        "last_evaluation": run.evaluation.last_return,
        "evaluation_frames": max(map(int, run.evaluation.frames), default=None),
        "evaluation_played": run.played,
        "target_return": target,
        "frames_to_target": frames,
        "minutes_to_target": minutes,
        "protocol": run.protocol,
        "machine": run.machine,
        "git_commit": run.commit,
        "logdir": run.logdir,
    }
    row |= {name: float(f"{v:.6g}") for name, v in row.items() if isinstance(v, float)}
    return {name: "" if v is None else printable(str(v)) for name, v in row.items()}


def spread(
    values: Sequence[float],
    show: Callable[[float], str],
    statistic: Callable[..., np.ndarray] = np.mean,
) -> str:
    """Returns a mean over seeds with `statistics.spread`, 120 (100 to 140); one seed has none."""
    mean = show(float(statistic(np.array(values))))
    if len(values) == 1:
        return mean
    low, high = statistics.spread(statistic, values)
    return f"{mean} ({show(float(low))} to {show(float(high))})"
