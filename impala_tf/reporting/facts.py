"""What a report says besides its figures: where, when and with what they were made."""

from __future__ import annotations

import datetime
import shlex
from collections.abc import Iterable, Sequence

from impala_tf.reporting import numbers
from impala_tf.reporting.runs import UNKNOWN, Run
from impala_tf.reporting.settings import Level, command
from impala_tf.reporting.summary import LevelSummary
from impala_tf.reporting.table import best

LEGEND = (
    "Line: mean over the seeds. Band: from the lowest seed to the highest. Over minutes, a seed"
    " that has finished keeps its last return."
)


def title(levels: Sequence[Level]) -> str:
    """Returns the headline of a report."""
    if len(levels) > 1:
        return f"{len(levels)} levels compared"
    (level,) = levels
    if len(level.settings) == 1:
        return f"{level.settings[0].label} on {level.name}"
    agents = {setting.agent_name for setting in level.settings}
    kind = "networks" if len(agents) == len(level.settings) else "settings"
    return f"{len(level.settings)} {kind} on {level.name}"


def headline(summary: LevelSummary) -> str:
    """Returns the result of a level in a sentence or two."""
    row = best(summary)
    if row is None or row.final_return is None:
        return "No game has finished yet."
    seeds = f"{row.final_return.seeds} seed{'s' if row.final_return.seeds > 1 else ''}"
    final = numbers.return_spread(row.final_return)
    if len(summary.rows) == 1:
        return f"{row.setting.label} ended with a mean return of {final} ({seeds})."
    text = f"{row.setting.label} ended with the highest mean return: {final} ({seeds})."
    timed = [row for row in summary.rows if row.agent_steps_per_s is not None]
    if len(timed) > 1:
        fastest = max(timed, key=lambda row: row.agent_steps_per_s or (0.0,))
        speed = numbers.spread(fastest.agent_steps_per_s, numbers.whole)
        text += f" {fastest.setting.label} was the fastest: {speed} agent steps/s."
    return text


def notes(summary: LevelSummary) -> list[str]:
    """Returns what a reader has to know about the table's figures."""
    lines = [
        "Return: unclipped, mean over the last 100 games of training; ± is the sample standard"
        " deviation over the seeds.",
        "Agent steps/s: of the whole run, on the machine below. Memory: the largest process of its"
        " kind, an actor with the processes of its environments.",
    ]
    if summary.target is not None:
        target = numbers.mean_return(summary.target.mean_return)
        lines.append(
            f"Frames and minutes are those to a return of {target}: that is"
            f" {summary.target.reason}."
        )
    if any(run.share < 1 for run in summary.level.runs):
        lines.append("Runs that have not finished count with what they have so far.")
    return lines


def byline(summary: LevelSummary) -> str:
    """Returns what stands below the headline: frames, seeds, machine and date."""
    pairs = dict(facts(summary.level.runs))
    seeds = {len(setting.runs) for setting in summary.level.settings}
    several = "" if seeds == {1} else "s"
    counts = f"{' to '.join(str(n) for n in sorted({min(seeds), max(seeds)}))} seed{several}"
    parts = [pairs["length"], counts, pairs["machine"], pairs["date"]]
    return " · ".join(part for part in parts if part != UNKNOWN)


def facts(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Returns (name, value) pairs: protocol, machine, commit and date of a level's runs."""
    ends = sorted(run.ended_unix_s for run in runs if run.ended_unix_s is not None)
    days = _unique(_day(moment) for moment in ends)
    return [
        ("protocol", _joined(run.protocol for run in runs)),
        (
            "length",
            _joined(f"{run.flags['total_environment_frames']:,} frames a run" for run in runs),
        ),
        ("machine", _joined(run.machine for run in runs)),
        ("commit", _joined(run.commit[:12] + "+" * run.commit.endswith("+") for run in runs)),
        ("date", " to ".join([days[0], days[-1]][: len(days)]) if days else UNKNOWN),
    ]


def commands(level: Level) -> list[tuple[str, str]]:
    """Returns (label and seed, command) of every run."""
    return [
        (f"{setting.label}, seed {run.seed}", shlex.join(command(run)))
        for setting in level.settings
        for run in setting.runs
    ]


def description(summary: LevelSummary, axis: str) -> str:
    """Returns in words what a picture of the curves shows."""
    finals = ", ".join(
        f"{row.setting.label} {numbers.return_spread(row.final_return)}" for row in summary.rows
    )
    return f"{summary.level.name}: mean return over {axis}. At the end: {finals}."


def _day(unix_s: float) -> str:
    moment = datetime.datetime.fromtimestamp(unix_s, tz=datetime.UTC)
    return f"{moment.day} {moment:%B %Y}"


def _unique(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))


def _joined(values: Iterable[str]) -> str:
    return "; ".join(_unique(values))
