"""Reads runs from their logdirs."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from impala_tf.config import ConfigError, EnvironmentConfig, split
from impala_tf.environments import suites
from impala_tf.logdir import Logdir, no_run
from impala_tf.monitoring.returns import Kind, Point, csv_rows, of_rows
from impala_tf.processes import provenance

UNKNOWN = "not recorded"


class Curve(NamedTuple):
    """A run's rows in which a game had finished, all float64 [rows]."""

    frames: np.ndarray  # environment frames
    minutes: np.ndarray  # minutes of training
    returns: np.ndarray  # mean returns of a `Kind`, or of a row's games

    @property
    def last_return(self) -> float | None:
        """The last return; None if no game has finished."""
        return float(self.returns[-1]) if len(self.returns) else None


_EMPTY = Curve(np.zeros(0), np.zeros(0), np.zeros(0))


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
    """One run, finished or not.

    Attributes:
      logdir: the run's folder.
      flags, sources: as in config.json (see `processes.provenance`).
      level_name, protocol: the level and how it was played.
      commit, machine: the version that trained it and the machine, as text.
      state: the state in status.json.
      ended_unix_s: when the status was last written; None if there is no status.
      frames, minutes: environment frames and minutes of training so far.
      several_levels: whether the agent learns several levels; False if that is unknown.
      curves: the learning curve in each kind of returns that the run has, the best kind first.
      kind: the kind to use.
      agent_steps_per_s: the mean rate after the first row; None before the second row.
      learner_memory_mb, actor_memory_mb: peaks, in MiB; None if not recorded.
      evaluation: the results of --eval_every that were played as the last one was; for several
        levels, the mean (of normalised returns if each level has them). Without rows if there are
        none.
      played: on what, how many and how these games were played; '' if none were.
    """

    logdir: Path
    flags: Mapping[str, Any]
    sources: Mapping[str, str]
    level_name: str
    protocol: str
    commit: str
    machine: str
    state: str
    ended_unix_s: float | None
    frames: int
    minutes: float
    several_levels: bool
    curves: Mapping[Kind, Curve]
    kind: Kind
    agent_steps_per_s: float | None
    learner_memory_mb: float | None
    actor_memory_mb: float | None
    evaluation: Curve = _EMPTY
    played: str = ""

    @property
    def seed(self) -> int:
        """The run's --seed."""
        return int(self.flags["seed"])

    @property
    def learners(self) -> int:
        """The number of learners."""
        return max(1, len(split(self.flags.get("learner_hosts") or "")))

    @property
    def share(self) -> float:
        """The fraction of --total_environment_frames that is done, from 0 to 1."""
        return min(1.0, self.frames / self.flags["total_environment_frames"])

    @property
    def is_finished(self) -> bool:
        """Whether the run has ended as intended: after all frames, or by --stop_at_return."""
        return self.share >= 1 or self.state == "done"

    @property
    def curve(self) -> Curve:
        """The learning curve; without rows until a game (of every level) has finished."""
        return self.curves.get(self.kind, _EMPTY)

    @property
    def is_pooled(self) -> bool:
        """Whether the returns are means over the games of all levels together."""
        return self.several_levels and self.kind is Kind.GAMES and len(self.curve.returns) > 0

    @property
    def final_return(self) -> float | None:
        """The last mean return; None if the curve has no rows."""
        return self.curve.last_return

    @property
    def last_evaluation(self) -> float | None:
        """The mean return in the last evaluation of --eval_every.

        None if there is none, or if the run has trained for another --eval_every frames since.
        """
        if not len(self.evaluation.frames):
            return None
        since = self.frames - self.evaluation.frames[-1]
        return self.evaluation.last_return if since <= (self.flags["eval_every"] or 0) else None

    def reached(self, mean_return: float) -> tuple[float, float] | tuple[None, None]:
        """Returns (frames, minutes) at the first row with that mean return, or (None, None)."""
        rows = np.flatnonzero(self.curve.returns >= mean_return)
        if not len(rows):
            return None, None
        return float(self.curve.frames[rows[0]]), float(self.curve.minutes[rows[0]])


def find(logdirs: str) -> list[Run]:
    """Returns the runs in --logdir: folders of runs, or folders with runs below them.

    Args:
      logdirs: paths, comma separated.

    Raises:
      ConfigError: a folder holds no run, or a file of a run cannot be read; a line for each.
    """
    folders: dict[Path, Path] = {}  # {absolute: as given}
    problems = []
    for text in split(logdirs):
        paths = _logdirs_in(Path(text))
        if not paths:
            is_exported = Logdir(Path(text)).is_exported
            why = "holds an exported agent; give the logdir of its run"
            problems.append(f"--logdir={text}: {why if is_exported else no_run(Path(text))}")
        folders.update({path.resolve(): path for path in paths})
    runs = []
    for path in folders.values():
        try:
            runs.append(read(path))
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    return runs


def read(path: Path) -> Run:
    """Reads one run.

    Raises:
      ConfigError: config.json, metrics.csv or evaluation.csv cannot be read.
    """
    logdir = Logdir(path)
    described, status = provenance.read(logdir), _status(logdir.status())
    if not described:
        raise ConfigError(f"{path}: {no_run(path)}")
    try:
        flags = described["flags"]
        rows, evaluations = csv_rows(logdir.metrics), csv_rows(logdir.evaluations)
        curves = _curves(rows, logdir.metrics)
        return Run(
            logdir=path,
            flags=flags,
            sources=described.get("sources", {}),
            level_name=flags["level_name"],
            protocol=described.get("protocol", UNKNOWN),
            commit=described.get("git_commit") or UNKNOWN,
            machine=_machines(described),
            state=status.get("state", "unknown"),
            ended_unix_s=status.get("updated_unix_s"),
            frames=int(rows[-1]["environment_frames"]) if rows else 0,
            minutes=float(rows[-1]["wall_time_s"]) / 60 if rows else 0.0,
            several_levels=_has_several(flags["level_name"]),
            curves=curves,
            kind=next(iter(curves)),
            agent_steps_per_s=_rate(rows),
            learner_memory_mb=_maximum(rows, "learner_memory_mb"),
            actor_memory_mb=_maximum(rows, "actor_memory_mb"),
            evaluation=_evaluation(_like_the_last(evaluations)),
            played=_played(evaluations),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{path}: config.json, metrics.csv, metrics-levels.csv or evaluation.csv is not a"
            f" run's: {error!r}"
        ) from None
    except OSError as error:
        raise _unreadable(path, error) from None


def _machines(described: Mapping[str, Any]) -> str:
    """Returns the machines of a run, which may move when it is resumed."""
    starts = [*described.get("history", []), described]
    names = dict.fromkeys(start["machine"] for start in starts if start.get("machine"))
    return ", then ".join(names) or UNKNOWN


def read_csv(path: Path, seed: int) -> Run:
    """Reads a copy of a run's metrics.csv; everything else about the run is unknown.

    Raises:
      ConfigError: the file is not a run's metrics.csv, or cannot be read.
    """
    try:
        rows = csv_rows(path)
        curves = _curves(rows, path)
        frames = int(rows[-1]["environment_frames"])
        return Run(
            logdir=path.parent,
            flags={"seed": seed, "total_environment_frames": frames},
            sources={},
            level_name=UNKNOWN,
            protocol=UNKNOWN,
            commit=UNKNOWN,
            machine=UNKNOWN,
            state="unknown",
            ended_unix_s=None,
            frames=frames,
            minutes=float(rows[-1]["wall_time_s"]) / 60,
            several_levels=Kind.LEVELS in curves,
            curves=curves,
            kind=next(iter(curves)),
            agent_steps_per_s=_rate(rows),
            learner_memory_mb=_maximum(rows, "learner_memory_mb"),
            actor_memory_mb=_maximum(rows, "actor_memory_mb"),
        )
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{path}: is not a run's metrics.csv: {error!r}") from None
    except OSError as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"{error.filename or path}: cannot be read: {error.strerror}")


def _logdirs_in(folder: Path) -> list[Path]:
    if Logdir(folder).config.is_file():
        return [folder]
    paths = (config.parent for config in folder.rglob("config.json"))
    return sorted((path for path in paths if Logdir(path).metrics.exists()), key=_natural)


def _natural(path: Path) -> list[tuple[int, str]]:
    """Returns a sort key that puts seed-10 after seed-9."""
    parts = re.split(r"(\d+)", str(path))
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def _status(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}  # a run that has just started has no status


def _played(rows: Sequence[Mapping[str, str]]) -> str:
    """Returns text such as "unseen levels (50 games, greedy actions)"; '' without rows."""
    if not rows:
        return ""
    last = rows[-1]
    games = f"{int(float(last['episodes']))} games" if last.get("episodes") else ""
    policy = f"{last['policy']} actions" if last.get("policy") else ""
    details = ", ".join(filter(None, (games, policy)))
    return f"{last['played']} ({details})" if details else last["played"]


def _like_the_last(rows: Sequence[Mapping[str, str]]) -> list[Mapping[str, str]]:
    """Returns the rows of the evaluations that were played as the last one was.

    A resumed run may have another --test_policy or --test_num_episodes.
    """
    ways: dict[str, list[tuple[str | None, ...]]] = {}
    for row in rows:
        way = tuple(row.get(name) for name in ("level_name", "played", "episodes", "policy"))
        ways.setdefault(row["environment_frames"], []).append(way)
    last = rows[-1]["environment_frames"] if rows else ""
    return [row for row in rows if ways[row["environment_frames"]] == ways[last]]


def _has_several(level_name: str) -> bool:
    return len(suites.levels(EnvironmentConfig(level_name=level_name))) > 1


def _curves(rows: Sequence[Mapping[str, str]], metrics: Path) -> dict[Kind, Curve]:
    return {kind: _curve(points) for kind, points in of_rows(rows, metrics).items()}


def _curve(points: Sequence[Point]) -> Curve:
    columns = ("environment_frames", "wall_time_s")
    frames, seconds = (np.array([float(row[name]) for row, _ in points]) for name in columns)
    return Curve(frames, seconds / 60, np.array([mean for _, mean in points]))


def _evaluation(rows: Sequence[Mapping[str, str]]) -> Curve:
    """Returns the mean over the levels of each checkpoint.

    The returns of different levels have no common scale, so normalised returns are used if each
    level has them. A checkpoint is left out if a level's return is not finite (a broken reward).
    """
    several = len({row["level_name"] for row in rows}) > 1
    normalized = several and all(row.get("normalized_return_mean") for row in rows)
    name = "normalized_return_mean" if normalized else "return_mean"
    checkpoints: dict[float, list[tuple[float, float]]] = {}
    for row in rows:
        pair = float(row["wall_time_s"]) / 60, float(row[name] or "nan")
        checkpoints.setdefault(float(row["environment_frames"]), []).append(pair)
    checkpoints = {
        frames: pairs
        for frames, pairs in checkpoints.items()
        if all(math.isfinite(value) for _, value in pairs)
    }
    means = np.array([np.mean(pairs, axis=0) for pairs in checkpoints.values()]).reshape(-1, 2)
    return Curve(np.array(list(checkpoints)), means[:, 0], means[:, 1])


def _rate(rows: Sequence[Mapping[str, str]]) -> float | None:
    if len(rows) < 2:
        return None
    steps, seconds = (
        float(rows[-1][name]) - float(rows[0][name]) for name in ("agent_steps", "wall_time_s")
    )
    return steps / seconds if seconds > 0 else None


def _maximum(rows: Sequence[Mapping[str, str]], name: str) -> float | None:
    return max((float(row[name]) for row in rows if row.get(name)), default=None)
