"""The numbers of a run: their names, how they are counted, and where they are written.

Writers can be rewound. A checkpoint stores the `position()` of each; a run that goes on from that
checkpoint calls `rewind` with it, which cuts off whatever was written later, so that no row is
repeated or torn. Importing this file does not import TensorFlow.
"""

from __future__ import annotations

import errno
import fcntl
import numbers
import os
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from impala_tf.config import ConfigError
from impala_tf.logdir import sync
from impala_tf.types import Episode

# Losses, entropy, norms, lags and shares are means over the updates since the last row.
_GROUPS: dict[str, dict[str, str]] = {
    "progress": {
        "wall_time_s": "seconds of training; pauses between a stop and a resume do not count",
        "agent_steps": "decisions learned from so far, over all learners",
        "environment_frames": "emulator frames behind them (agent steps x action repeats)",
        "learner_updates": "optimizer steps so far",
    },
    "speed": {
        "agent_steps_per_s": "agent steps a second since the last row, over all learners",
        "frames_per_s": "environment frames a second since the last row, over all learners",
    },
    "episode": {
        "episodes": "whole games finished so far",
        "episode_return_mean": "mean unclipped return of the last 100 whole games",
        "episode_length_mean": "mean length of the last 100 whole games, in agent steps",
    },
    "loss": {
        "loss_total": "what is minimised: the losses below, weighted by their costs",
        "loss_policy_gradient": "policy gradient loss, summed over time and batch",
        "loss_baseline": "half the squared error of the baseline, summed over time and batch",
        "entropy": "entropy of the policy in nats, mean over the steps",
    },
    "optimizer": {
        "gradient_norm": "global norm of the gradients before clipping",
        "learning_rate": "learning rate of the next update",
    },
    "lag": {
        "policy_lag_mean": "mean age of the parameters that acted, in learner updates",
        "policy_lag_max": "greatest age of the parameters that acted, in learner updates",
        "rho_clip_fraction": "share of the importance weights above clip_rho_threshold",
        "c_clip_fraction": "share of the importance weights above clip_c_threshold",
    },
    "learner": {
        "queue_size": "unrolls that wait for the learner",
        "learner_idle_fraction": "share of the time since the last row spent waiting for a batch",
    },
}
METRICS: dict[str, str] = {
    name: meaning for metrics in _GROUPS.values() for name, meaning in metrics.items()
}
"""The columns of metrics.csv, in order, with their meanings. Read them by name: more may come."""
TENSORBOARD_TAGS: dict[str, str] = {
    name: f"{group}/{name.removeprefix(f'{group}_')}"
    for group, metrics in _GROUPS.items()
    for name in metrics
}
"""{metric: its curve in TensorBoard}, such as episode_return_mean: episode/return_mean."""

Row = Mapping[str, float | int | None]
"""{name of METRICS: value}; a name that is missing or None has no value yet."""

_PUT_BACK = "put the file of the checkpoint back or choose another --logdir"
_NO_CHECKPOINT = "but there is no checkpoint to go on from; move it away or choose another --logdir"


class CsvWriter:
    """A header and a line a row, each written whole; no value is an empty cell.

    Args:
      path: such as metrics.csv.
      columns: their names, in order, with their meanings.
    """

    def __init__(self, path: Path, columns: Mapping[str, str] = METRICS) -> None:
        self._path = Path(path)
        self._columns = columns
        self._header = ",".join(columns) + "\n"
        self._descriptor: int | None = None

    def write(self, row: Row) -> None:
        """Appends a row. Raises KeyError for a name that is no column."""
        for name in row:
            self._columns[name]
        self._append(",".join(_cell(row.get(name)) for name in self._columns) + "\n")

    def position(self) -> dict[str, int]:
        """Returns {"offset": bytes}, all of them flushed to the disk."""
        descriptor = self._opened()
        os.fsync(descriptor)
        return {"offset": os.fstat(descriptor).st_size}

    def rewind(self, position: Mapping[str, int] | None) -> None:
        """Opens the file and cuts it off at `position`; None: begins the file of a fresh run.

        Raises ConfigError where the file is not the one that the position was taken from, or where
        another process is writing it.
        """
        self.close()
        create = os.O_CREAT if position is None else 0
        self._path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_APPEND | create, 0o644)
        except FileNotFoundError:
            raise ConfigError(f"{self._path}: is gone; {_PUT_BACK}") from None
        self._lock()
        if position is None:
            self._begin()
        else:
            self._cut(position["offset"])

    def close(self) -> None:
        """Closes the file; the next call opens it as a fresh run's."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _opened(self) -> int:
        if self._descriptor is None:
            self.rewind(None)
        assert self._descriptor is not None
        return self._descriptor

    def _lock(self) -> None:
        # The kernel drops the lock with the process, so a killed run leaves none behind.
        try:
            fcntl.flock(self._opened(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise ConfigError(
                f"{self._path}: another process is writing it; does a run still use this --logdir?"
            ) from None

    def _append(self, line: str) -> None:
        # One system call a line: a killed run leaves whole lines, and nothing waits to be flushed.
        data = line.encode()
        if os.write(self._opened(), data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))

    def _begin(self) -> None:
        descriptor = self._opened()
        # Less than a header is left by a run that was killed before its first row.
        header = self._header.encode()
        if not header.startswith(os.pread(descriptor, len(header) + 1, 0)):
            self.close()
            raise ConfigError(f"{self._path}: holds a run's rows, {_NO_CHECKPOINT}")
        os.ftruncate(descriptor, 0)
        self._append(self._header)
        sync(self._path.parent)

    def _cut(self, offset: int) -> None:
        descriptor = self._opened()
        header = os.pread(descriptor, offset, 0).partition(b"\n")[0].decode(errors="replace")
        size = os.fstat(descriptor).st_size
        found = None
        if size < offset:
            found = f"has {size:,} bytes, it had {offset:,} at the checkpoint; {_PUT_BACK}"
        elif header + "\n" != self._header:
            differences = sorted(set(header.split(",")) ^ set(self._columns))
            found = (
                "is of another version, whose columns differ in"
                f" {', '.join(differences) or 'their order'}; choose another --logdir"
            )
        elif os.pread(descriptor, 1, offset - 1) != b"\n":
            found = f"was changed: no row ends at byte {offset:,}; {_PUT_BACK}"
        if found:
            self.close()
            raise ConfigError(f"{self._path}: {found}")
        os.ftruncate(descriptor, offset)


def _cell(value: float | int | None) -> str:
    if value is None:
        return ""
    return str(int(value)) if isinstance(value, numbers.Integral) else f"{float(value):.8g}"


def in_use(path: Path) -> bool:
    """Tells whether another process writes this metrics.csv now."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


class TensorBoardWriter:
    """The same rows as TensorBoard curves, named by TENSORBOARD_TAGS, over environment_frames."""

    def __init__(self, directory: Path) -> None:
        self._directory = Path(directory)
        self._writer: Any = None

    def write(self, row: Row) -> None:
        """Adds a point to each curve that has a value and shows it to readers at once."""
        import tensorflow as tf

        if self._writer is None:
            self._writer = tf.summary.create_file_writer(str(self._directory))
        with self._writer.as_default(step=row["environment_frames"]):
            for name, value in row.items():
                if value is not None:
                    tf.summary.scalar(TENSORBOARD_TAGS[name], value, description=METRICS[name])
        self._writer.flush()

    def position(self) -> dict[str, int]:
        """Returns {event file: bytes}, all of them flushed to the disk."""
        files = self._event_files()
        for file in files:
            sync(file)
        return {file.name: file.stat().st_size for file in files}

    def rewind(self, position: Mapping[str, int] | None) -> None:
        """Cuts the event files off at `position` and removes later ones; None: a fresh run.

        Raises ConfigError where event files are missing or shorter than they were, and where a
        fresh run would add to another run's curves.
        """
        self.close()
        files = {file.name: file for file in self._event_files()}
        if position is None and files:
            raise ConfigError(f"{self._directory}: holds a run's events, {_NO_CHECKPOINT}")
        sizes = position or {}
        found = [
            f"{self._directory / name}: is gone or shorter than at the checkpoint; {_PUT_BACK}"
            for name, size in sizes.items()
            if name not in files or files[name].stat().st_size < size
        ]
        if found:
            raise ConfigError(found)
        for name, file in files.items():
            if name in sizes:
                os.truncate(file, sizes[name])
            else:
                file.unlink()

    def close(self) -> None:
        """Closes the event file; a later row begins another."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _event_files(self) -> list[Path]:
        return sorted(self._directory.glob("events.out.tfevents.*"))


class EpisodeWindow:
    """Counts finished games and averages the last 100."""

    def __init__(self) -> None:
        self._count = 0
        self._last: deque[Episode] = deque(maxlen=100)

    def add(self, episode: Episode) -> None:
        """Counts a finished game."""
        self._count += 1
        self._last.append(Episode(float(episode.episode_return), int(episode.episode_length)))

    def row(self) -> dict[str, float | int | None]:
        """Returns the metrics about episodes; the means are None before the first game's end."""
        return {
            "episodes": self._count,
            "episode_return_mean": _mean([e.episode_return for e in self._last]),
            "episode_length_mean": _mean([e.episode_length for e in self._last]),
        }

    def state(self) -> dict[str, Any]:
        """Returns the window as JSON-able values, for a checkpoint."""
        return {"count": self._count, "last": [list(episode) for episode in self._last]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes over what `state` returned."""
        self._count = state["count"]
        self._last.clear()
        self._last.extend(Episode(*episode) for episode in state["last"])


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


class Rates:
    """Agent steps and frames a second between one call and the next."""

    def __init__(
        self, agent_steps: int, environment_frames: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Starts to measure now, at the given counts (not 0 where a run goes on)."""
        self._clock = clock
        self._last = (clock(), agent_steps, environment_frames)

    def row(self, agent_steps: int, environment_frames: int) -> dict[str, float | int | None]:
        """Returns the metrics about speed since the last call; None where no time has passed."""
        before, steps_before, frames_before = self._last
        self._last = (self._clock(), agent_steps, environment_frames)
        elapsed = self._last[0] - before
        if elapsed <= 0:
            return {"agent_steps_per_s": None, "frames_per_s": None}
        return {
            "agent_steps_per_s": (agent_steps - steps_before) / elapsed,
            "frames_per_s": (environment_frames - frames_before) / elapsed,
        }
