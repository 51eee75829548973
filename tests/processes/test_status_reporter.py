"""status.json says how a run ended."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest

from impala_tf.callbacks import Callback
from impala_tf.learner.callbacks import Callbacks
from impala_tf.learner.group import LearnerGroup
from impala_tf.learner.peers import Peers
from impala_tf.machine.process_lifetime import StopRequest
from impala_tf.monitoring.status import read_status
from impala_tf.processes.learner_parts import LearnerParts
from impala_tf.processes.status_reporter import StatusReporter
from tests.helpers.waiting import wait_until

Build = Callable[[], LearnerParts]


def state(parts: LearnerParts) -> str | None:
    found = read_status(parts.logdir.status())
    return None if found is None else found["state"]


def reporter(parts: LearnerParts) -> StatusReporter:
    peers = Peers(LearnerGroup(), ["h:1"])
    return StatusReporter(parts, StopRequest(), peers, interval_s=0.02)


def counters(parts: LearnerParts, frames_left: int) -> dict[str, float]:
    frames = parts.config.run.total_environment_frames - frames_left
    return {
        "learner_updates": 1,
        "agent_steps": frames,
        "environment_frames": frames,
        "kl_factor": 1.0,
    }


@pytest.mark.parametrize(("frames_left", "expected"), [(100, "stopped"), (0, "done")])
def test_a_run_that_ends_is_stopped_or_done(build: Build, frames_left: int, expected: str) -> None:
    """The display shows it, and users need to know whether a run can be resumed."""
    parts = build()
    with reporter(parts):
        wait_until(lambda: state(parts) == "starting", what="status of a run that starts")
        parts.learner.restore_counters(counters(parts, frames_left))
    assert state(parts) == expected


def test_a_run_that_a_callback_ended_says_so(build: Build) -> None:
    """A mean return below --stop_at_return, which compares the levels, looked like a fault."""

    class Ends(Callback):
        stopping = True

    def reason(end_early: bool, frames_left: int = 100) -> str:
        parts = build()
        parts.callbacks = Callbacks([Ends()], [], parts.logdir)
        with reporter(parts):
            parts.learner.restore_counters(counters(parts, frames_left))
            if end_early:
                parts.learner.finish()
        found = read_status(parts.logdir.status())
        assert found is not None
        return found["end_reason"]

    assert reason(end_early=True).endswith("Ends has called stop()")
    assert reason(end_early=False) == "", "it was stopped, and its callback too late"
    assert reason(end_early=True, frames_left=0) == ""


def test_a_run_that_ends_with_an_error_or_whose_callback_raised_has_failed(build: Build) -> None:
    parts = build()
    with contextlib.suppress(FloatingPointError), reporter(parts):
        raise FloatingPointError
    assert state(parts) == "failed"
    with reporter(parts):
        parts.learner.finish()
        parts.callbacks.failure = "--callbacks: Upload.on_row raised OSError: no network"
    assert state(parts) == "failed"


def test_a_logdir_that_was_moved_is_shown(build: Build) -> None:
    """The new folder that appears in its place cannot be resumed."""
    parts = build()
    parts.logdir.config.parent.mkdir(exist_ok=True)
    parts.logdir.config.touch()

    def trouble() -> str:
        found = read_status(parts.logdir.status())
        return found["storage_trouble"]["text"] if found and found["storage_trouble"] else ""

    with reporter(parts):
        wait_until(lambda: state(parts) == "starting", what="status of a run that starts")
        parts.logdir.path.rename(parts.logdir.path.with_name("moved"))
        wait_until(lambda: "was --logdir moved or deleted?" in trouble(), what="trouble")
