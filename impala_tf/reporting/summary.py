"""The numbers of a report: means over seeds with intervals, and frames to a given return."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from impala_tf.reporting import statistics
from impala_tf.reporting.runs import Curve, Run
from impala_tf.reporting.settings import Level, Setting
from impala_tf.reporting.statistics import Comparison, Interval

_SHARE = 0.8
_POINTS = 200
_NOISE = 1e-6  # mean returns below count as 0
_MOST_DECIMALS = 9

Figure = Callable[[Run], float | None]
final_return: Figure = operator.attrgetter("final_return")
"""The figure by which settings are compared."""
last_evaluation: Figure = operator.attrgetter("last_evaluation")
agent_steps_per_s: Figure = operator.attrgetter("agent_steps_per_s")
training_curve: Callable[[Run], Curve] = operator.attrgetter("curve")
evaluation_curve: Callable[[Run], Curve] = operator.attrgetter("evaluation")
"""The results of --eval_every."""


class Spread(NamedTuple):
    """A figure over the seeds of a setting."""

    mean: float
    interval: Interval | None  # of the mean; None: one seed
    seeds: int  # how many have the figure


class Target(NamedTuple):
    """The mean return whose frames and minutes a report gives."""

    mean_return: float
    reason: str  # where it comes from, as a phrase


class Exhibit(NamedTuple):
    """What is learned by building and playing a setting's agent; None where that fails."""

    parameters: int | None = None  # how many numbers training changes
    multiply_adds: int | None = None  # of the network for one step of one environment
    clip: bytes | None = None  # mp4
    caption: str = ""  # what the clip shows, or why there is none


class SettingSummary(NamedTuple):
    """The figures of one setting; None where no seed has one."""

    setting: Setting
    exhibit: Exhibit
    final_return: Spread | None
    final_iqm: Spread | None  # interquartile mean; None: fewer than three seeds
    agent_steps_per_s: Spread | None
    evaluation: Spread | None  # last mean return of --eval_every
    evaluation_iqm: Spread | None  # as final_iqm
    frames_to_target: Spread | None
    minutes_to_target: Spread | None
    learner_memory_mb: float | None  # the largest of its runs
    actor_memory_mb: float | None


class LevelSummary(NamedTuple):
    """A level with everything that a report says about it."""

    level: Level
    target: Target | None
    rows: list[SettingSummary]


class MeanCurve(NamedTuple):
    """The mean of a setting's curves and its 95 % interval, all float64 [points]."""

    x: np.ndarray  # frames or minutes
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    measured_until: float  # from here on, some seeds have finished and keep their last return


def summarize_level(
    level: Level, exhibits: Mapping[Setting, Exhibit], report_return: float | None
) -> LevelSummary:
    """Returns everything about a level. `report_return` is the value of --report_return."""
    target = target_of(level, report_return)
    rows = [summarize(setting, target, exhibits[setting]) for setting in level.settings]
    if not evaluated_alike(level):
        rows = [row._replace(evaluation=None, evaluation_iqm=None) for row in rows]
    return LevelSummary(level, target, rows)


def evaluated_alike(level: Level) -> bool:
    """Tells whether the games of --eval_every were played alike, so that they can be compared."""
    return len({run.played for run in level.runs if run.played}) <= 1


def target_of(level: Level, given: float | None) -> Target | None:
    """Returns the level's target return; None if there is no sensible one.

    A single run has none, as it would be compared with its own end; nor has a level on which
    nothing was learned.

    Args:
      level: the level with its runs.
      given: the value of --report_return.
    """
    if given is not None:
        return Target(given, "--report_return")
    curves = [run.curve.returns for run in level.runs if len(run.curve.returns)]
    if len(curves) < 2:
        return None
    first = float(np.mean([curve[0] for curve in curves]))
    finals = [spread_of(setting.runs, final_return) for setting in level.settings]
    best = max(final.mean for final in finals if final is not None)
    if best <= first:
        return None
    share = f"{_SHARE:.0%}".replace("%", " %")
    start = f"{first:.{decimals(first)}f}".replace("-", "\u2212")
    reason = f"{share} of the way from the first mean return, {start}, to the best final one"
    # Rounded, so that the figures belong to the return that readers see, but by less than one
    # percent of what was learned: else it may lie above the best return, or below the first.
    exact = first + _SHARE * (best - first)
    needed = math.ceil(-math.log10(0.02 * (best - first)))
    return Target(round(exact, min(max(decimals(exact), needed), _MOST_DECIMALS)), reason)


def summarize(setting: Setting, target: Target | None, exhibit: Exhibit) -> SettingSummary:
    """Returns the figures of a setting."""
    runs, mean_return = setting.runs, target.mean_return if target else math.inf
    return SettingSummary(
        setting=setting,
        exhibit=exhibit,
        final_return=spread_of(runs, final_return),
        final_iqm=_iqm(values_of(runs, final_return)),
        agent_steps_per_s=spread_of(runs, agent_steps_per_s),
        evaluation=spread_of(runs, last_evaluation),
        evaluation_iqm=_iqm(values_of(runs, last_evaluation)),
        frames_to_target=spread_of(runs, lambda run: run.reached(mean_return)[0]),
        minutes_to_target=spread_of(runs, lambda run: run.reached(mean_return)[1]),
        learner_memory_mb=_largest(run.learner_memory_mb for run in runs),
        actor_memory_mb=_largest(run.actor_memory_mb for run in runs),
    )


def spread_of(runs: Iterable[Run], figure: Figure) -> Spread | None:
    """Returns the mean of a figure over the runs that have it, with its interval."""
    values = values_of(runs, figure)
    if not values:
        return None
    return Spread(float(np.mean(values)), statistics.mean_interval(values), len(values))


def values_of(runs: Iterable[Run], figure: Figure) -> list[float]:
    """Returns the figure of each run that has it."""
    return [value for run in runs if (value := figure(run)) is not None]


def leaders(rows: Sequence[SettingSummary], figure: Figure) -> list[SettingSummary]:
    """Returns the settings that may be the best, the one with the highest mean first.

    If there are several, chance can explain the differences between them. Settings without the
    figure are left out.
    """
    rows = [row for row in rows if values_of(row.setting.runs, figure)]
    if not rows:
        return []
    values = [values_of(row.setting.runs, figure) for row in rows]
    return [rows[number] for number in statistics.leaders(values)]


def comparisons(
    summary: LevelSummary, figure: Figure = final_return
) -> list[tuple[str, str, Comparison]]:
    """Compares the setting with the highest mean of a figure with each other setting.

    Returns:
      (label, other label, comparison) of each pair in which both have three seeds or more. [] until
      all runs have finished, and for figures without a common scale.
    """
    rows = [row for row in summary.rows if values_of(row.setting.runs, figure)]
    first, *_ = [*leaders(rows, figure), None]
    if first is None or not summary.level.is_finished:
        return []
    if figure is last_evaluation and not evaluated_alike(summary.level):
        return []
    if figure is final_return and summary.level.is_pooled:
        return []
    values = values_of(first.setting.runs, figure)
    return [
        (first.setting.label, row.setting.label, comparison)
        for row in rows
        if row is not first
        and (comparison := statistics.compare(values, values_of(row.setting.runs, figure)))
    ]


def mean_curve(
    setting: Setting, axis: str, curve: Callable[[Run], Curve] = training_curve
) -> MeanCurve | None:
    """Returns a setting's mean curve; None if no run has two points.

    It ends with the shortest run that has not finished. Finished runs do not end it but keep their
    last return: some end sooner (--stop_at_return), and some take longer for the same frames.
    Before its first row, a run has the return of that row. A run that has not finished takes part
    from its second row on.

    Args:
      setting: the setting with its runs.
      axis: "frames" or "minutes".
      curve: returns the curve of a run.
    """
    if not has_curve(setting, curve):
        return None
    # A finished run may be so short that it has a single row.
    fewest = {run: 1 if _is_over(run, curve) else 2 for run in setting.runs}
    runs = [run for run in setting.runs if len(curve(run).returns) >= fewest[run]]
    xs = [getattr(curve(run), axis) for run in runs]
    ends = [x[-1] for x in xs]
    open_ends = [end for end, run in zip(ends, runs, strict=True) if not _is_over(run, curve)]
    end = min([max(ends), *open_ends])
    start = min(x[0] for x in xs)
    if start >= end:
        return None
    grid = np.linspace(start, end, _POINTS)
    lines = np.array([np.interp(grid, x, curve(r).returns) for x, r in zip(xs, runs, strict=True)])
    low, high = statistics.bounds(statistics.mean, lines)
    return MeanCurve(grid, lines.mean(axis=0), low, high, min(ends))


def has_curve(setting: Setting, curve: Callable[[Run], Curve] = training_curve) -> bool:
    """Tells whether there is a line to draw: whether a run has two points."""
    return any(len(curve(run).returns) > 1 for run in setting.runs)


def _is_over(run: Run, curve: Callable[[Run], Curve]) -> bool:
    """Tells whether a run's last point is its result, and not only the last that is known."""
    is_evaluated = curve is not evaluation_curve or run.last_evaluation is not None
    return run.is_finished and is_evaluated


def decimals(mean_return: float) -> int:
    """Returns how many decimals of a mean return are worth showing: two digits of small ones."""
    size = abs(mean_return)
    if _NOISE <= size < 1:
        return max(2, 1 - math.floor(math.log10(size)))
    return 2 if size < 10 else 1 if size < 1000 else 0


def _iqm(values: list[float]) -> Spread | None:
    interval = statistics.iqm_interval(values)
    if interval is None:
        return None
    return Spread(
        float(statistics.interquartile_mean(np.array([values]))[0]), interval, len(values)
    )


def _largest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
