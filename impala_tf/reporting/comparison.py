"""Groups runs by level and by setting, and compares settings by the returns of their seeds."""

from __future__ import annotations

import dataclasses
import operator
import shlex
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from impala_tf import config as configs
from impala_tf.config.flag_values import MAY_CHANGE
from impala_tf.monitoring.returns import Kind
from impala_tf.processes import provenance
from impala_tf.reporting import statistics
from impala_tf.reporting.runs import Curve, Run

_TARGET_SHARE = 0.8
_POINTS = 200
# A run may resume with other values of these, but with them, it is not compared as the same.
_OF_A_SETTING = {
    "total_environment_frames",
    "num_actors",
    "envs_per_actor",
    "inference",
    "precision",
}
_NOT_OF_A_SETTING = (MAY_CHANGE - _OF_A_SETTING) | {"seed", "info_metrics"}

Figure = Callable[[Run], float | None]
final_return: Figure = operator.attrgetter("curve.last_return")
last_evaluation: Figure = operator.attrgetter("evaluation.last_return")


@dataclasses.dataclass(frozen=True, eq=False)
class Setting:
    """Runs that differ only in their seeds."""

    label: str  # what distinguishes it from the level's other settings: "ResNetAgent, ppo"
    runs: Sequence[Run]  # one run or more, one for each seed, ordered by seed
    repeats: Sequence[Run] = ()  # further runs with these seeds, which do not count

    def values(self, figure: Figure) -> list[float]:
        """Returns the figure of each run that has it."""
        return [value for run in self.runs if (value := figure(run)) is not None]


@dataclasses.dataclass(frozen=True, eq=False)
class Level:
    """A level and its settings, in the order in which their runs were given."""

    name: str
    settings: Sequence[Setting]

    @property
    def runs(self) -> list[Run]:
        """The runs of all settings."""
        return [run for setting in self.settings for run in setting.runs]

    @property
    def kind(self) -> Kind:
        """The kind of the runs' returns. Runs that have just started may not know it yet."""
        return next((run.kind for run in self.runs if len(run.curve.returns)), self.runs[0].kind)

    @property
    def played(self) -> str:
        """What the games of --eval_every were played on; '' if there are none."""
        return " or ".join(dict.fromkeys(run.played for run in self.runs if run.played))

    @property
    def is_finished(self) -> bool:
        """Whether all runs have finished, so that they can be compared."""
        return all(run.is_finished for run in self.runs)

    @property
    def target(self) -> float | None:
        """The return whose frames and minutes a report gives; None if there is no sensible one.

        It is 80 % of the way from the first mean return to the best setting's final one. A single
        run has none, as it would be compared with its own end.
        """
        first = [run.curve.returns[0] for run in self.runs if len(run.curve.returns)]
        finals = [setting.values(final_return) for setting in self.settings]
        if len(first) < 2:
            return None
        start, best = float(np.mean(first)), max(float(np.mean(each)) for each in finals if each)
        return start + _TARGET_SHARE * (best - start) if best > start else None


class MeanCurve(NamedTuple):
    """The mean of a setting's curves and their `statistics.spread`, all float64 [points]."""

    x: np.ndarray  # frames or minutes
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    measured_until: float  # from here on, some seeds have finished and keep their last return


def group(runs: Sequence[Run]) -> list[Level]:
    """Returns the levels, each with its settings and their runs."""
    names = dict.fromkeys(run.level_name for run in runs)
    return [_level(name, [run for run in runs if run.level_name == name]) for name in names]


def _level(name: str, runs: Sequence[Run]) -> Level:
    """Groups the runs by their labels: agent, algorithm if it differs, given flags that differ."""
    sources = [source for run in runs for source in run.described["sources"].items()]
    given = {flag for flag, source in sources if source == "given"} - _NOT_OF_A_SETTING
    values: list[dict[str, Any]] = []
    for run in runs:
        learners = len(configs.split(run.flags["learner_hosts"])) or 1
        start = "a run" if run.flags.get("start_from") else "nothing"  # each seed its own
        values.append({**run.flags, "learners": learners, "start_from": start})
    others = ["learners", *sorted(given - {"agent_name", "algorithm"})]
    differing = [flag for flag in others if len({str(each.get(flag)) for each in values}) > 1]
    has_algorithms = len({each["algorithm"] for each in values}) > 1
    grouped: dict[str, list[Run]] = {}
    for run, each in zip(runs, values, strict=True):
        parts = [each["agent_name"], *([each["algorithm"]] if has_algorithms else [])]
        label = ", ".join([*parts, *(f"{flag}={each.get(flag)}" for flag in differing)])
        grouped.setdefault(label, []).append(run)
    settings = []
    for label, alike in grouped.items():
        # For each seed, the run that got furthest counts.
        kept = {run.seed: run for run in sorted(alike, key=operator.attrgetter("frames"))}
        chosen = [kept[seed] for seed in sorted(kept)]
        settings.append(Setting(label, chosen, [run for run in alike if run not in chosen]))
    return Level(name, settings)


def command(run: Run) -> str:
    """Returns the command that repeats a run on one machine."""
    flags = {**provenance.repeating(run.described), "logdir": run.logdir}
    words = [configs.to_flag(name, value) for name, value in flags.items()]
    return shlex.join(["impala", "train", *words])


def leaders(level: Level) -> list[Setting]:
    """Returns the settings that may have the highest final return, that of the mean first."""
    settings = [setting for setting in level.settings if setting.values(final_return)]
    values = [setting.values(final_return) for setting in settings]
    return [settings[number] for number in statistics.leaders(values)] if settings else []


def winner(level: Level) -> Setting | None:
    """Returns the setting that is better than all others; None if that is not certain."""
    best = leaders(level) if level.is_finished and len(level.settings) > 1 else []
    return best[0] if len(best) == 1 else None


def mean_curve(setting: Setting, axis: str, which: str) -> MeanCurve | None:
    """Returns a setting's mean curve; None if no run has two points.

    `axis` is frames or minutes, `which` an attribute of Run that is a Curve. It ends with the
    shortest run that has not finished. Finished runs keep their last return: some end sooner
    (--stop_at_return), and some take longer for the same frames. Before its first row, a run has
    the return of that row.
    """
    of_run: Callable[[Run], Curve] = operator.attrgetter(which)
    runs = [run for run in setting.runs if len(of_run(run).returns) > (not run.is_finished)]
    xs = [getattr(of_run(run), axis) for run in runs]
    if not any(len(x) > 1 for x in xs):
        return None
    open_ends = [x[-1] for x, run in zip(xs, runs, strict=True) if not run.is_finished]
    start, end = min(x[0] for x in xs), min([max(x[-1] for x in xs), *open_ends])
    grid = np.linspace(start, max(start, end), _POINTS)
    lines = np.array([np.interp(grid, x, of_run(r).returns) for x, r in zip(xs, runs, strict=True)])
    mean = lines.mean(axis=0)
    low, high = statistics.spread(np.mean, lines)
    return MeanCurve(grid, mean, low, high, min(x[-1] for x in xs))
