"""Looks at a run on a machine, with one command that starts no Python there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from impala_tf.frontend.connection import NO_WORKDIR, CommandRunner
from impala_tf.frontend.errors import ClusterError
from impala_tf.frontend.node import state as files
from impala_tf.frontend.node.state import NodeState
from impala_tf.frontend.record import Record
from impala_tf.logdir import Logdir

Status = Mapping[str, Any]
_TIMEOUT_S = 15.0
# Prints files; '' for a file that does not exist.
_CAT = r'for f; do cat -- "$f" 2>/dev/null; printf "\0"; done'


class Look(NamedTuple):
    """The state of a run on a machine."""

    state: NodeState | None
    """None if the run has not been started there."""
    is_silent: bool
    """Whether the supervisor seems to be dead or stopped."""
    has_rebooted: bool
    """Whether the machine has booted since the supervisor wrote its state."""
    now_unix_s: float
    """The time by the machine's clock."""
    statuses: Mapping[int, Status]
    """{rank: status} of the machine's learners that have written one."""


def look(runner: CommandRunner, record: Record) -> Look:
    """Looks at a machine. Raises ClusterError if it is unreachable."""
    node = runner.node
    learners = [process.name for process in record.plan.on(node) if process.is_learner]
    ranks = [int(name.removeprefix("learner-")) for name in learners]
    paths = [
        str(files.state_path(node.logdir, node.id)),
        "/proc/sys/kernel/random/boot_id",
        "/proc/uptime",
        *(str(Logdir(Path(node.logdir)).status(rank)) for rank in ranks),
    ]
    done = runner.run(["sh", "-c", _CAT, "sh", *paths], timeout_s=_TIMEOUT_S)
    output = done.text
    if "\0" not in output and done.status != NO_WORKDIR:
        raise ClusterError(f"{node.name}: {done.last_line}")
    texts = output.split("\0")[:-1] if "\0" in output else [""] * len(paths)
    state_text, boot_id, uptime, *statuses = texts
    state = files.parse_state(state_text) if state_text else None
    if state is None or state.run_id != record.run_id:
        return Look(None, False, False, 0.0, {})
    uptime_s = float(uptime.split()[0])
    return Look(
        state,
        is_silent=files.is_silent(state, boot_id.strip(), uptime_s),
        has_rebooted=state.boot_id != boot_id.strip(),
        now_unix_s=state.now_unix_s + max(0.0, uptime_s - state.uptime_s),
        statuses={
            rank: status
            for rank, name, text in zip(ranks, learners, statuses, strict=True)
            if (status := _current(state, name, text)) is not None
        },
    )


def _current(state: NodeState, name: str, text: str) -> Status | None:
    """Returns a learner's status, unless an earlier run wrote it."""
    process = state.processes.get(name)
    if not text or process is None or process.started_unix_s is None:
        return None
    try:
        status: Status = json.loads(text)
    except ValueError:
        return None  # half written: the disk is full
    if process.pid is not None and status.get("pid") == process.pid:
        return status  # whatever its clock says
    # A restarted learner writes no status until it trains again; its last one is still true.
    first_s = process.started_unix_s if process.restarts == 0 else 0.0
    return status if status["updated_unix_s"] >= first_s else None
