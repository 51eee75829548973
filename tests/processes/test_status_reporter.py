"""status.json says how a run ended."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest

from impala_tf.learner.stall_watch import StallWatch
from impala_tf.machine.process_lifetime import StopRequest
from impala_tf.monitoring.status import read_status
from impala_tf.processes import status_reporter
from impala_tf.processes.learner_parts import LearnerParts
from impala_tf.processes.status_reporter import StatusReporter
from tests.helpers.waiting import wait_until

Build = Callable[[], LearnerParts]


def state(parts: LearnerParts) -> str | None:
    found = read_status(parts.logdir.status())
    return None if found is None else found["state"]


def reporter(parts: LearnerParts) -> StatusReporter:
    return StatusReporter(parts, StopRequest(), StallWatch(["h:1"], 0, lambda: []))


@pytest.mark.parametrize(("frames_left", "expected"), [(100, "stopped"), (0, "done")])
def test_a_run_that_ends_is_stopped_or_done(
    build: Build, monkeypatch: pytest.MonkeyPatch, frames_left: int, expected: str
) -> None:
    """The display shows it, and users need to know whether a run can be resumed."""
    monkeypatch.setattr(status_reporter, "_INTERVAL_S", 0.02)
    parts = build()
    with reporter(parts):
        wait_until(lambda: state(parts) == "starting", what="status of a run that starts")
        total = parts.config.run.total_environment_frames
        frames = total - frames_left
        parts.learner.restore_counters(
            {"learner_updates": 1, "agent_steps": frames, "environment_frames": frames}
        )
    assert state(parts) == expected


def test_a_run_that_ends_with_an_error_has_failed(build: Build) -> None:
    parts = build()
    with contextlib.suppress(FloatingPointError), reporter(parts):
        raise FloatingPointError
    assert state(parts) == "failed"
