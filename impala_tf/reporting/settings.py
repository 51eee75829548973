"""Groups runs by level and by setting, which is everything but the seed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from impala_tf.config import (
    BUILT_IN,
    ENGINE_FLAGS,
    ClusterConfig,
    EvaluationConfig,
    ExportConfig,
    ReportConfig,
    to_flag,
    user_commands,
)
from impala_tf.logdir import Logdir
from impala_tf.monitoring.returns import Kind
from impala_tf.reporting.runs import Run

# Flags about the process that wrote config.json and how it was started, and flags of other modes.
_NOT_OF_THE_RUN = {
    "mode", "logdir", "fresh", "job_name", "task", "learner_hosts", "actor_hosts", "credentials",
    "heartbeat_path", "idle_exit_minutes", "track",
    *(field.name for group in (ClusterConfig, EvaluationConfig, ReportConfig, ExportConfig)
      for field in dataclasses.fields(group)),
    *ENGINE_FLAGS,
}  # fmt: skip
# Further flags that do not change how a run learns.
_NOT_A_SETTING = {
    *_NOT_OF_THE_RUN, "seed", "checkpoint_interval_s", "metrics_interval_s", "device",
    "video_every", "eval_every", "stop_at_return", "mirror", "config", "environment_processes",
    "learner_threads", "track_project", "track_group", "track_tags", "info_metrics",
    "environment_timeout_s", "save_replay",
}  # fmt: skip
_NAMING = ("agent_name", "algorithm")


@dataclasses.dataclass(frozen=True, eq=False)
class Setting:
    """Runs that differ only in their seeds.

    Attributes:
      label: what distinguishes it from the level's other settings, such as "ResNetAgent, ppo".
      runs: one run or more, one for each seed, ordered by seed.
      repeats: further runs with these seeds, which do not count as further seeds.
    """

    label: str
    runs: tuple[Run, ...]
    repeats: tuple[Run, ...] = ()

    @property
    def agent_name(self) -> str:
        """The setting's --agent_name."""
        return str(self.runs[0].flags["agent_name"])


@dataclasses.dataclass(frozen=True)
class Level:
    """A level and its settings, in the order in which their runs were given."""

    name: str
    settings: tuple[Setting, ...]

    @property
    def runs(self) -> list[Run]:
        """The runs of all settings."""
        return [run for setting in self.settings for run in setting.runs]

    @property
    def has_several(self) -> bool:
        """Whether this stands for several levels that one agent learns."""
        return any(run.several_levels for run in self.runs)

    @property
    def is_pooled(self) -> bool:
        """Whether returns are means over the games of several levels, and so cannot be compared."""
        return any(run.is_pooled for run in self.runs)

    @property
    def is_finished(self) -> bool:
        """Whether all runs have finished, so that they can be compared."""
        return all(run.is_finished for run in self.runs)


def group(runs: Sequence[Run]) -> list[Level]:
    """Returns the levels, each with its settings and their runs."""
    names = dict.fromkeys(run.level_name for run in runs)
    return [_level(name, [run for run in runs if run.level_name == name]) for name in names]


def command(run: Run) -> list[str]:
    """Returns the command that repeats a run on one machine, with the flags that were given.

    Level, agent and seed are always included.
    """
    given_flags = {
        "level_name": run.level_name,
        "agent_name": run.flags["agent_name"],
        "seed": run.seed,
    }
    of_evaluations = {"test_num_episodes", "test_policy"} if run.flags.get("eval_every") else set()
    hidden = _NOT_OF_THE_RUN - of_evaluations
    for name, value in run.flags.items():
        given = run.sources[name] == "given" if name in run.sources else value != BUILT_IN.get(name)
        if given and name not in hidden and value is not None:
            given_flags[name] = value
    flags = [to_flag(name, value) for name, value in {**given_flags, "logdir": run.logdir}.items()]
    return [*user_commands.from_anywhere("train"), *flags]


def _level(name: str, runs: Sequence[Run]) -> Level:
    grouped: dict[tuple[tuple[str, str], ...], list[Run]] = {}
    for run in runs:
        grouped.setdefault(_identity(run), []).append(run)
    labels = _labels(list(grouped), runs)
    pairs = zip(labels, grouped.values(), strict=True)
    return on_one_scale(Level(name, tuple(_setting(*pair) for pair in pairs)))


def on_one_scale(level: Level) -> Level:
    """Returns the level with one kind of returns: the best kind that all its runs have."""
    played = [run for run in level.runs if len(run.curves[Kind.GAMES].returns)]
    best = next(kind for kind in Kind if all(kind in run.curves for run in played))
    if not played or all(run.kind is best for run in level.runs):
        return level
    return Level(level.name, tuple(_in_kind(setting, best) for setting in level.settings))


def _in_kind(setting: Setting, kind: Kind) -> Setting:
    runs = tuple(dataclasses.replace(run, kind=kind) for run in setting.runs)
    return dataclasses.replace(setting, runs=runs)


def _setting(label: str, members: Sequence[Run]) -> Setting:
    """Keeps for each seed the run that got furthest; of equal ones the newest, but not a mirror."""
    ordered = sorted(
        members,
        key=lambda run: (
            run.seed, -run.frames, Logdir(run.logdir).is_mirror, -(run.ended_unix_s or math.inf)
        ),
    )  # fmt: skip
    first = {run.seed: run for run in reversed(ordered)}
    chosen = tuple(run for run in ordered if first[run.seed] is run)
    return Setting(label, chosen, tuple(run for run in ordered if first[run.seed] is not run))


def _identity(run: Run) -> tuple[tuple[str, str], ...]:
    """Returns the flags that identify a setting, without those that the machine decided."""
    flags = {
        name: str(value)
        for name, value in run.flags.items()
        if name not in _NOT_A_SETTING and run.sources.get(name) != "derived" and value is not None
    }
    # Each seed may start from a run of its own.
    flags["start_from"] = "a run" if flags.get("start_from") else "nothing"
    return tuple(sorted({**flags, "learners": str(run.learners)}.items()))


def _labels(identities: Sequence[tuple[tuple[str, str], ...]], runs: Sequence[Run]) -> list[str]:
    """Returns the shortest labels that tell the settings of a level apart."""
    flags = [dict(identity) for identity in identities]
    names = dict.fromkeys(name for setting in flags for name in setting)
    differing = [name for name in names if len({setting.get(name) for setting in flags}) > 1]
    given = {name for run in runs for name, source in run.sources.items() if source == "given"}
    unnamed = [name for name in differing if name not in _NAMING]
    for extra in ([], [name for name in unnamed if name in {*given, "learners"}], unnamed):
        labels = [_label(setting, differing, extra) for setting in flags]
        if len(set(labels)) == len(labels):
            return labels
    return [f"{label} ({number})" for number, label in enumerate(labels, start=1)]


def _label(flags: dict[str, str], differing: Sequence[str], extra: Sequence[str]) -> str:
    parts = [flags["agent_name"]]
    if "algorithm" in differing:
        parts.append(flags.get("algorithm", "impala"))
    return ", ".join([*parts, *(f"{name}={flags.get(name, 'default')}" for name in extra)])
