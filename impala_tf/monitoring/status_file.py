"""status.json: the learner's current state, for the display and for `impala cluster status`."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NotRequired, TypedDict, cast

from impala_tf.logdir import read_json, write_atomically

State = Literal["starting", "training", "stopping", "stopped", "done", "failed"]
"""`stopped`, `done` and `failed` are final: stopped can be resumed, done has finished training."""


class ActorStatus(TypedDict):
    """An actor, as its learner sees it."""

    name: str
    host: str
    agent_steps_per_s: float
    parameter_lag: float  # age of the parameters of its last unroll, in learner updates
    push_wait_fraction: float  # fraction of its time spent waiting for the learner
    last_contact_unix_s: float
    present: NotRequired[bool]  # whether it keeps a call open: a slow one may rarely push
    environment_restarts: NotRequired[int]  # restarts of environments that broke
    trouble: NotRequired[str]  # what keeps it from acting; '': nothing does
    memory_mb: NotRequired[float]  # peak resident memory so far, in MiB; 0: unknown


class CheckpointStatus(TypedDict):
    """The newest checkpoint."""

    path: str
    environment_frames: int


class ReplayStatus(TypedDict):
    """Learner 0's replay buffer, in agent steps."""

    steps: int
    capacity: int
    missing: int  # until learning starts


class EvaluationStatus(TypedDict):
    """The newest result of --eval_every."""

    environment_frames: int  # of the evaluated checkpoint
    return_mean: float | None  # over all levels; None: no checkpoint was evaluated yet
    normalized: NotRequired[bool]  # whether it is the mean of several levels' normalised returns
    episodes: int
    played: str  # unseen levels, or other seeds
    awaited: bool  # whether training is done, and the last checkpoint is being evaluated


class StorageTrouble(TypedDict):
    """What cannot be written, and since when."""

    since_unix_s: float
    text: str


class AwayLearner(TypedDict):
    """A learner of the run that is away while the others train."""

    learner: int  # the number N of learner-N
    since_unix_s: float


class Status(TypedDict):
    """The contents of status.json. Counts are over all learners."""

    state: State
    level_name: str
    agent_name: str
    precision: NotRequired[str]  # the dtype in which the learner's torso computes on images
    logdir: str
    agent_steps: int
    environment_frames: int
    total_environment_frames: int
    frames_per_step: int
    queue_capacity: int
    row: Mapping[str, float | int | None] | None  # the last row of metrics.csv
    learners: Sequence[Mapping[str, float | int | None]]  # [] if there is only one
    actors: list[ActorStatus]
    checkpoint: CheckpointStatus | None
    wall_time_s: NotRequired[float]  # of training so far, as in metrics.csv, but newer
    last_update_unix_s: NotRequired[float | None]  # of the parameters; None: not yet
    starving_since_unix_s: NotRequired[float | None]  # when unrolls stopped; None: they arrive
    storage_trouble: NotRequired[StorageTrouble | None]
    num_learners: NotRequired[int]  # the number of learners that train now
    away_learners: NotRequired[list[AwayLearner]]
    replay: NotRequired[ReplayStatus | None]  # None: the algorithm has none
    evaluation: NotRequired[EvaluationStatus | None]  # None: --eval_every has no result yet
    end_reason: NotRequired[str]  # why the run ended before its last frame; '': it did not
    notes: NotRequired[list[str]]  # what the user must know, oldest first (see `Notes`)
    pid: NotRequired[int]  # `write_status` fills in this field and the next two
    updated_unix_s: NotRequired[float]
    updated_uptime_s: NotRequired[float]  # on this machine's monotonic clock, which is never set


_BLOCK, _SPARE = 4096, 512


def write_status(path: Path, status: Status) -> None:
    """Replaces status.json atomically. Adds this process's id and the time."""
    stamped = {
        **status,
        "pid": os.getpid(),
        "updated_unix_s": time.time(),
        "updated_uptime_s": time.monotonic(),
    }
    text = json.dumps(stamped, default=float)
    # Padded to whole blocks, so that on a full disk it can overwrite the old file in place.
    text = text.ljust(_BLOCK * ((len(text) + _SPARE) // _BLOCK + 1) - 1) + "\n"
    try:
        write_atomically(path, text)
    except OSError:
        with path.open("r+", encoding="utf-8") as file:
            file.write(text)
            file.truncate()


def read_status(path: Path) -> Status | None:
    """Returns the last written status; None if there is none yet, or it cannot be read."""
    try:
        return cast(Status, read_json(path))
    except (OSError, ValueError):
        return None


FOR_USER = {"for_user": True}
"""Pass this as `extra` to a logger: status.json and the display also get the line."""


class Notes(logging.Handler):
    """Keeps the lines that this process has logged with FOR_USER, each once.

    Attributes:
      lines: the lines, oldest first.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps the line of a record that was logged with FOR_USER."""
        if getattr(record, "for_user", False) and (line := record.getMessage()) not in self.lines:
            self.lines.append(line)
