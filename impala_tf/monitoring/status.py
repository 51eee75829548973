"""status.json: what the learner is doing now, for the display and for `frontend status`."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NotRequired, TypedDict

from impala_tf.logdir import write_atomically

State = Literal["starting", "training", "stopping", "stopped", "done", "failed"]
"""`stopped`, `done` and `failed` are final: stopped can be resumed, done has had all its frames."""


class ActorStatus(TypedDict):
    """An actor, as its learner sees it."""

    name: str
    host: str
    agent_steps_per_s: float
    parameter_lag: float  # age of the parameters that it last acted with, in learner updates
    push_wait_fraction: float  # fraction of its time that it waited for the learner
    last_contact_unix_s: float
    present: NotRequired[bool]  # it keeps a call open: a slow one calls once in minutes
    environment_restarts: NotRequired[int]  # of environments that broke
    trouble: NotRequired[str]  # what keeps it from acting; '': nothing
    memory_mb: NotRequired[float]  # peak resident memory so far, in MiB; 0: unknown


class CheckpointStatus(TypedDict):
    """The newest checkpoint."""

    path: str
    environment_frames: int


class ReplayStatus(TypedDict):
    """Learner 0's replay, in agent steps."""

    steps: int
    capacity: int
    missing: int  # until learning begins


class EvaluationStatus(TypedDict):
    """The newest result of --eval_every."""

    environment_frames: int  # of its checkpoint
    return_mean: float | None  # over all levels; None: no checkpoint was evaluated yet
    normalized: NotRequired[bool]  # whether it is of several levels' normalised returns
    episodes: int
    played: str  # unseen levels, or other seeds
    awaited: bool  # the run has had all its frames, and its last checkpoint is evaluated


class StorageTrouble(TypedDict):
    """What cannot be written, and since when."""

    since_unix_s: float
    text: str


class AwayLearner(TypedDict):
    """A learner of the run without which the others train."""

    learner: int  # 2: it is learner-2
    since_unix_s: float


class Status(TypedDict):
    """Everything that a display needs. Counts are over all learners."""

    state: State
    level_name: str
    agent_name: str
    precision: NotRequired[str]  # what the learner's torso computes in on images
    logdir: str
    agent_steps: int
    environment_frames: int
    total_environment_frames: int
    frames_per_step: int
    queue_capacity: int
    row: Mapping[str, float | int | None] | None  # the last row of metrics.csv
    learners: Sequence[
        Mapping[str, float | int | None]
    ]  # of metrics-learners.csv; [] if there is one
    actors: list[ActorStatus]
    checkpoint: CheckpointStatus | None
    last_update_unix_s: NotRequired[float | None]  # of the parameters; None: not yet
    starving_since_unix_s: NotRequired[float | None]  # no unrolls since then; None: there are
    storage_trouble: NotRequired[StorageTrouble | None]
    num_learners: NotRequired[int]  # that train now
    away_learners: NotRequired[list[AwayLearner]]
    refused_actor: NotRequired[str]  # who was refused in the last minute, and why; '': nobody
    replay: NotRequired[ReplayStatus | None]  # None: the algorithm has none
    evaluation: NotRequired[EvaluationStatus | None]  # None: --eval_every has no result yet
    end_reason: NotRequired[str]  # why it is done before its last frame; '': it is not
    notes: NotRequired[list[str]]  # what its user must know, the oldest first (see `notes.Notes`)
    pid: NotRequired[int]  # `write_status` fills in these three
    updated_unix_s: NotRequired[float]
    updated_uptime_s: NotRequired[float]  # on this machine's monotonic clock, which is never set


_BLOCK, _SPARE = 4096, 512
_RETRY_S = 0.25
PATIENCE_S = 10.0
"""For `read_status` where its answer is the last word on a run."""


def write_status(path: Path, status: Status) -> None:
    """Replaces status.json as a whole, so that it can be read at any time.

    Adds this process's id and the time.
    """
    stamped = {
        **status,
        "pid": os.getpid(),
        "updated_unix_s": time.time(),
        "updated_uptime_s": time.monotonic(),
    }
    text = json.dumps(stamped, default=float)
    # Padded to whole blocks: on a full disk, it is written over the old one, into its blocks.
    text = text.ljust(_BLOCK * ((len(text) + _SPARE) // _BLOCK + 1) - 1) + "\n"
    try:
        write_atomically(path, text)
    except OSError:
        with path.open("r+", encoding="utf-8") as file:
            file.write(text)
            file.truncate()


def read_status(path: Path, patience_s: float = 0.0) -> Status | None:
    """Returns what was written last.

    None before the first write, in the middle of one, or where the file cannot be read: network
    file systems fail for a moment now and then, which is no reason to stop a run.

    Args:
      path: of status.json.
      patience_s: how long to try again if it is there and cannot be read.
    """
    until_s = time.monotonic() + patience_s
    while True:
        try:
            status: Status = json.loads(Path(path).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            if time.monotonic() >= until_s:
                return None
            time.sleep(_RETRY_S)
        else:
            return status
