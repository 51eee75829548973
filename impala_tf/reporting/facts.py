"""The text of a report around its figures: results in words, and where they come from."""

from __future__ import annotations

import datetime
import shlex
from collections.abc import Iterable, Sequence

from impala_tf.monitoring.returns import Kind
from impala_tf.reporting import numbers
from impala_tf.reporting.runs import UNKNOWN, Run
from impala_tf.reporting.settings import Level, command
from impala_tf.reporting.statistics import FEWEST_SEEDS
from impala_tf.reporting.summary import (
    LevelSummary,
    SettingSummary,
    Spread,
    agent_steps_per_s,
    evaluated_alike,
    evaluation_curve,
    final_return,
    has_curve,
    last_evaluation,
    leaders,
)
from impala_tf.reporting.summary import comparisons as compared

_MOST_NAMED = 3  # settings in a sentence
_LEGEND = (
    "Line: mean over the seeds. Band: 95 % bootstrap interval of that mean; with two or three"
    " seeds, it reaches from the lowest to the highest. Pale end of a line: some seeds have"
    " finished and count with their last return."
)
_EVALUATIONS = (
    " Evaluations: the lines are games on {played}; the pale lines beside them are the returns in"
    " training."
)
NO_CURVES = (
    "no run has two rows of metrics.csv in which a game had finished; a smaller"
    " --metrics_interval_s writes more rows"
)
_POOLED = "mean return of the last 100 games of all levels"
_RETURN = {
    Kind.NORMALIZED: "mean over the levels of their normalised returns, from means over the last"
    " 100 games of training. On Atari, 0 is a random agent and 1 a human; on Procgen, 0 is the"
    " published R_min and 1 is R_max.",
    Kind.LEVELS: "mean over the levels of their unclipped means over the last 100 games of"
    " training.",
    Kind.GAMES: "unclipped, mean over the last 100 games of training.",
}


def axis(summary: LevelSummary) -> str:
    """Returns the kind of a level's training returns, as the label of an axis."""
    level = summary.level
    return _POOLED if level.is_pooled else level.runs[0].kind.value


def legend(summary: LevelSummary) -> str:
    """Returns the meaning of lines and bands."""
    if not any(has_curve(setting, evaluation_curve) for setting in summary.level.settings):
        return _LEGEND
    return _LEGEND + _EVALUATIONS.format(played=played_on(summary))


def played_on(summary: LevelSummary) -> str:
    """Returns what the games of --eval_every were played on; '' if there are none."""
    return " or ".join(_unique(run.played for run in summary.level.runs if run.played))


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
    """Returns the result of a level in a sentence or two; names only significant winners."""
    rows = [row for row in summary.rows if row.final_return is not None]
    if not rows:
        runs = summary.level.runs
        several = summary.level.has_several and any(len(r.curves[Kind.GAMES].returns) for r in runs)
        return "No game has finished yet" + (" on some of the levels." if several else ".")
    if len(rows) == 1:
        verb = "ended with" if summary.level.is_finished else "has so far"
        return f"{rows[0].setting.label} {verb} a mean return of {_final(rows[0])}."
    if not summary.level.is_finished:
        return "No winner is named yet: not all runs have finished."
    best = leaders(rows, final_return)
    if summary.level.is_pooled:
        text = "No winner is named: the returns are means over the games of all levels together."
    elif len(best) == 1:
        text = f"{best[0].setting.label} ended with the highest mean return: {_final(best[0])}."
    else:
        text = _undecided(best, rows)
    timed = [row for row in rows if row.agent_steps_per_s is not None]
    fastest = leaders(timed, agent_steps_per_s)
    # On several machines, the difference may be the machines'.
    machines = {run.machine for run in summary.level.runs}
    is_one_machine = len(machines) == 1 and UNKNOWN not in machines
    if len(timed) > 1 and len(fastest) == 1 and is_one_machine:
        speed = numbers.spread(fastest[0].agent_steps_per_s, numbers.whole)
        text += f" {fastest[0].setting.label} was the fastest: {speed} agent steps/s."
    return text


def _undecided(found: Sequence[SettingSummary], rows: Sequence[SettingSummary]) -> str:
    """Returns the sentence for several settings, any of which may be the best of `rows`."""
    labels = [row.setting.label for row in found]
    names = ", ".join(labels[:-1]) + f" and {labels[-1]}"
    if len(labels) > _MOST_NAMED or any("," in label for label in labels):
        names = f"the {len(labels)} best settings"
    final = [row.final_return for row in found if row.final_return is not None]
    if min(spread.seeds for spread in final) < FEWEST_SEEDS:
        why = f"that needs {FEWEST_SEEDS} seeds or more of each of {names}"
    else:
        why = f"chance can explain the differences between {names}"
    rest = len(rows) - len(found)
    behind = f" The other{'s' if rest > 1 else ''} ended lower." if rest else ""
    return f"No winner is named: {why}.{behind}"


def _final(row: SettingSummary) -> str:
    """Returns a final return as text: 25.0 (95 % interval 20.0 to 30.0, 3 seeds)."""
    value = row.final_return or Spread(0.0, None, 0)
    seeds = f"{value.seeds} seed{'s' if value.seeds > 1 else ''}"
    if value.interval is None:
        return f"{numbers.mean_return(value.mean)} ({seeds})"
    return numbers.return_spread(value).replace("(", "(95 % interval ").replace(")", f", {seeds})")


def comparisons(summary: LevelSummary) -> list[str]:
    """Returns a line for each comparison of the best setting with another one.

    First by final returns, then by last evaluations.
    """
    return [
        f"{prefix}{first} over {second}: probability of improvement {result.improvement:.2f}"
        f" ({result.interval.low:.2f} to {result.interval.high:.2f}), p {_p_value(result.p_value)}"
        for prefix, figure in (("", final_return), ("in evaluation, ", last_evaluation))
        for first, second, result in compared(summary, figure)
    ]


def _p_value(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"= {value:.2g}"


def notes(summary: LevelSummary) -> list[str]:
    """Returns what readers must know about the table's figures."""
    lines = [
        f"Return: {_RETURN[summary.level.runs[0].kind]} In parentheses: 95 %"
        " bootstrap interval of the mean over the seeds. With two or three seeds, that is their"
        " range, and too narrow.",
        "Agent steps/s: of the whole run, on the machine below. Memory: the largest process of its"
        " kind, an actor with the processes of its environments.",
    ]
    if summary.level.is_pooled:
        lines.insert(1, _pooled(summary.level))
    if played := played_on(summary):
        lines.append(
            "Last evaluation: mean unclipped return of the last checkpoint that --eval_every"
            f" evaluated, in whole games on {played}. A run that has trained for more than another"
            " --eval_every frames since then is left out. With several levels, this is the mean"
            " over the levels, of normalised returns if each level has them."
        )
        if not evaluated_alike(summary.level):
            lines.append(
                "Runs were evaluated in different ways, so their evaluations are not compared;"
                " report.csv has them."
            )
    if any(row.final_iqm is not None for row in summary.rows):
        lines.append(
            "IQM: interquartile mean, of the middle half of the seeds. If their number is no"
            " multiple of four, seeds count in part, where rliable counts them whole."
        )
    if compared(summary):
        lines.append(
            "Probability of improvement: that a run of the first ends higher than one of the"
            " second. p: how often chance alone makes such a difference (Welch's t-test). A winner"
            " is named if p is at most 0.05 divided by the number of pairs, against each other one."
        )
    if summary.target is not None:
        target = numbers.target(summary.target.mean_return)
        lines.append(
            f"Frames and minutes are those to a return of {target}: that is"
            f" {summary.target.reason}."
        )
    if not summary.level.is_finished:
        lines.append(
            "Runs that have not finished count with what they have so far, so nothing is compared"
            " yet."
        )
    if repeats := [run for setting in summary.level.settings for run in setting.repeats]:
        folders = ", ".join(str(run.logdir) for run in repeats)
        lines.append(
            "A seed counts once, with the run that got furthest, or the newest of equal ones. These"
            f" runs repeat a seed and are left out: {folders}."
        )
    return lines


def _pooled(level: Level) -> str:
    """Explains why returns are means over the games of all levels, and what that means."""
    lacking = [run for run in level.runs if run.is_pooled and Kind.LEVELS not in run.curves]
    folders = ", ".join(str(run.logdir) for run in lacking)
    return (
        "The games of all levels count together, so levels with short games count most, and final"
        " returns are not compared. The mean over the levels needs metrics-levels.csv. These"
        f" runs do not have it: {folders}."
    )


def byline(summary: LevelSummary) -> str:
    """Returns the line below the headline: frames, seeds, machine and date."""
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
        *_protocols(runs),
        (
            "length",
            _joined(f"{run.flags['total_environment_frames']:,} frames a run" for run in runs),
        ),
        ("machine", _joined(run.machine for run in runs)),
        ("commit", _joined(run.commit[:12] + "+" * run.commit.endswith("+") for run in runs)),
        ("date", " to ".join([days[0], days[-1]][: len(days)]) if days else UNKNOWN),
    ]


def _protocols(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Returns a pair for each protocol. They are not joined, as each has its own punctuation."""
    protocols = _unique(run.protocol for run in runs)
    if len(protocols) == 1:
        return [("protocol", protocols[0])]
    return [
        (
            f"protocol {number}",
            f"{text} (of {', '.join(str(run.logdir) for run in runs if run.protocol == text)})",
        )
        for number, text in enumerate(protocols, start=1)
    ]


def commands(level: Level) -> list[tuple[str, str]]:
    """Returns (label and seed, command) of every run."""
    return [
        (f"{setting.label}, seed {run.seed}", shlex.join(command(run)))
        for setting in level.settings
        for run in setting.runs
    ]


def description(summary: LevelSummary, axis: str) -> str:
    """Describes a picture of the curves in words."""
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
