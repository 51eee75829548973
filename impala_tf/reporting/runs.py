"""Reads runs from their logdirs."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from impala_tf.config import ConfigError, split
from impala_tf.logdir import Logdir, no_run, read_json
from impala_tf.monitoring.returns import Kind, csv_rows, scores
from impala_tf.printable import printable_parts
from impala_tf.processes import provenance

UNKNOWN = "not recorded"
_MOST_UNIX_S = 1e11  # later dates have no name
# What a report needs of a run's flags; the run may be somebody else's.
_KINDS = {
    "agent_name": str,
    "algorithm": str,
    "learner_hosts": str,
    "level_name": str,
    "seed": int,
    "total_environment_frames": int,
}


class Curve(NamedTuple):
    """Mean returns, or other figures, over time, all float64 [rows]."""

    frames: np.ndarray  # environment frames
    minutes: np.ndarray  # minutes of training
    returns: np.ndarray

    @property
    def last_return(self) -> float | None:
        """The last return; None if no game has finished."""
        return float(self.returns[-1]) if len(self.returns) else None


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
    """One run, finished or not."""

    logdir: Path
    described: Mapping[str, Any]  # config.json; see `processes.provenance`
    flags: Mapping[str, Any]  # all flags of the run
    seed: int
    level_name: str
    protocol: str
    commit: str  # the version that trained it
    machine: str  # the machines of the learner, which may change when a run is resumed
    state: str  # as in status.json
    ended_unix_s: float | None  # when status.json was last written; None before
    frames: int  # environment frames so far
    minutes: float  # of training so far
    kind: Kind  # of the returns in the curve
    curve: Curve  # of training; without rows until a game (of every level) has finished
    evaluation: Curve  # of --eval_every; without rows if there are none
    entropy: Curve  # of the policy, in nats; without rows where the algorithm has none
    kl: Curve  # KL(acting policy || learner's policy) in nats; likewise
    rate: Curve  # agent steps per second
    played: str  # on what and how the games of --eval_every were played; '' if none were
    agent_steps_per_s: float | None  # mean rate after the first row; None before the second row
    learner_memory_mb: float | None  # peaks in MiB; None if not recorded
    actor_memory_mb: float | None

    @property
    def is_finished(self) -> bool:
        """Whether the run has ended as intended: after all frames, or by --stop_at_return."""
        return self.state == "done" or self.frames >= self.flags["total_environment_frames"]

    def reached(self, mean_return: float) -> tuple[int, float] | tuple[None, None]:
        """Returns (frames, minutes) at the first row with that mean return, or (None, None)."""
        rows = np.flatnonzero(self.curve.returns >= mean_return)
        if not len(rows):
            return None, None
        return int(self.curve.frames[rows[0]]), float(self.curve.minutes[rows[0]])


def find(logdirs: str) -> list[Run]:
    """Returns the runs in --logdir: comma separated folders of runs, or with runs below them.

    Raises ConfigError: a folder holds no run, or a run's files are not those of a run.
    """
    runs: list[Run] = []
    for text in split(logdirs):
        folder = Path(text)
        below = sorted(path.parent for path in folder.rglob("config.json"))
        paths = [path for path in below if Logdir(path).metrics.exists()]
        if Logdir(folder).config.is_file():
            paths = [folder]
        if not paths:
            raise ConfigError(f"--logdir={text}: {no_run(folder)}")
        runs += map(read, paths)
    return runs


def read(path: Path) -> Run:
    """Reads the run in a logdir.

    Raises:
      ConfigError: there is none, or a file is not a run's.
    """
    logdir = Logdir(path)
    described = provenance.read(logdir)
    if not described:
        raise ConfigError(f"{path}: {no_run(path)}")
    for name, kind in _KINDS.items():
        if type(value := described["flags"].get(name)) is not kind:
            raise ConfigError(f"{logdir.config}: {name}: {value!r:.60} is no {kind.__name__}")
    try:
        status = read_json(logdir.status())
    except (OSError, ValueError):
        status = {}  # a run that has just started has no status
    return from_files(logdir.metrics, described, status)


def from_files(metrics: Path, described: Mapping[str, Any], status: Mapping[str, Any]) -> Run:
    """Makes a run of metrics.csv (a copy with another name has no files beside it) and others.

    `described` is config.json, `status` status.json. Raises ConfigError: a CSV file is not a run's.
    """
    described, status = printable_parts(described), printable_parts(status)
    flags, logdir = described["flags"], Logdir(metrics.parent)
    try:
        is_copy = metrics != logdir.metrics
        evaluations = [] if is_copy else printable_parts(csv_rows(logdir.evaluations))
        starts = [*described.get("history", []), described]
        machines = dict.fromkeys(str(start["machine"]) for start in starts if "machine" in start)
        ended = status.get("updated_unix_s")
        rows = csv_rows(metrics)
        played = "{played} ({episodes} games, {policy} actions)"
        kind, points = scores(metrics)
        times = np.array([_time(row) for row, _ in points]).reshape(-1, 2)
        frames, minutes = _time(rows[-1]) if rows else (0.0, 0.0)
        return Run(
            logdir=metrics.parent,
            described=described,
            flags=flags,
            seed=flags["seed"],
            level_name=flags["level_name"],
            protocol=str(described.get("protocol", UNKNOWN)),
            commit=str(described.get("git_commit") or UNKNOWN),
            machine=", then ".join(machines) or UNKNOWN,
            state=str(status.get("state", "unknown")),
            ended_unix_s=ended if isinstance(ended, float) and 0 < ended < _MOST_UNIX_S else None,
            frames=int(frames),
            minutes=minutes,
            kind=kind,
            curve=Curve(times[:, 0], times[:, 1], np.array([mean for _, mean in points])),
            evaluation=_evaluation(evaluations),
            entropy=_curve(rows, "entropy"),
            kl=_curve(rows, "kl"),
            rate=_curve(rows, "agent_steps_per_s"),
            played=played.format(**evaluations[-1]) if evaluations else "",
            agent_steps_per_s=_rate(rows),
            learner_memory_mb=max(_column(rows, "learner_memory_mb"), default=None),
            actor_memory_mb=max(_column(rows, "actor_memory_mb"), default=None),
        )
    except (ArithmeticError, AttributeError, LookupError, OSError, TypeError, ValueError) as error:
        raise ConfigError(f"{metrics}: is not a run's, or a file beside it: {error}") from None


def _time(row: Mapping[str, str]) -> tuple[float, float]:
    """Returns (environment frames, minutes)."""
    return float(row["environment_frames"]), float(row["wall_time_s"]) / 60


def _curve(rows: Sequence[Mapping[str, str]], name: str) -> Curve:
    points = [(*_time(row), float(row[name])) for row in rows if row.get(name)]
    return Curve(*np.array(points).reshape(-1, 3).T)


def _evaluation(rows: Sequence[Mapping[str, str]]) -> Curve:
    """Returns the mean over the levels of each checkpoint, of normalised returns if all have one.

    Left out are rows from before a resume with other --test_num_episodes or --test_policy, and
    checkpoints with a return that is not finite (a broken reward).
    """
    way = operator.itemgetter("episodes", "policy")
    rows = [row for row in rows if way(row) == way(rows[-1])]
    several = len({row["level_name"] for row in rows}) > 1
    normalized = several and all(row["normalized_return_mean"] for row in rows)
    name = "normalized_return_mean" if normalized else "return_mean"
    checkpoints: dict[tuple[float, float], list[float]] = {}
    for row in rows:
        checkpoints.setdefault(_time(row), []).append(float(row[name] or "nan"))
    points = [(*time, np.mean(values)) for time, values in checkpoints.items()]
    table = np.array(points).reshape(-1, 3)
    return Curve(*table[np.isfinite(table[:, 2])].T)


def _rate(rows: Sequence[Mapping[str, str]]) -> float | None:
    steps, seconds = _column(rows, "agent_steps"), _column(rows, "wall_time_s")
    elapsed = seconds[-1] - seconds[0] if rows else 0.0
    return (steps[-1] - steps[0]) / elapsed if elapsed > 0 else None


def _column(rows: Sequence[Mapping[str, str]], name: str) -> list[float]:
    return [float(row[name]) for row in rows if row.get(name)]
