"""status.json says how a run ended."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest

from impala_tf.callbacks import Callback
from impala_tf.learner.user_callbacks import UserCallbacks
from impala_tf.monitoring.status_file import Status, read_status
from impala_tf.processes.learner_main import LearnerProcess
from tests.helpers.waiting import wait_until

Build = Callable[[], LearnerProcess]


def read(process: LearnerProcess) -> Status | None:
    return read_status(process.logdir.status())


def state(process: LearnerProcess) -> str | None:
    found = read(process)
    return None if found is None else found["state"]


def counters(process: LearnerProcess, frames_left: int) -> dict[str, float]:
    frames = process.learner.total_frames - frames_left
    counts = dict.fromkeys(("agent_steps", "environment_frames"), frames)
    return {"learner_updates": 1, "kl_factor": 1.0, **counts}


@pytest.mark.parametrize(("frames_left", "expected"), [(100, "stopped"), (0, "done")])
def test_a_run_that_ends_is_stopped_or_done(build: Build, frames_left: int, expected: str) -> None:
    """The display shows it, and users need to know whether a run can be resumed."""
    process = build()
    with process.reporting(0.02):
        wait_until(lambda: state(process) == "starting", what="status of a run that starts")
        process.learner.restore_counters(counters(process, frames_left))
    assert state(process) == expected


@pytest.mark.parametrize(
    ("end_early", "frames_left", "is_said"),
    [(True, 100, True), (False, 100, False), (True, 0, False)],
)
def test_a_run_that_a_callback_ended_says_so(
    build: Build, end_early: bool, frames_left: int, is_said: bool
) -> None:
    """A mean return below --stop_at_return, which compares the levels, looked like a fault."""

    class Ends(Callback):
        stopping = True

    process = build()
    assert process.outputs is not None
    process.outputs.callbacks = UserCallbacks([Ends()], process.logdir, lambda *added: None)
    with process.reporting(0.02):
        process.learner.restore_counters(counters(process, frames_left))
        if end_early:
            process.learner.finish()
    found = read(process)
    assert found is not None
    assert found["end_reason"].endswith("Ends has called stop()") == is_said
    assert bool(found["end_reason"]) == is_said


def test_a_run_that_ends_with_an_error_or_whose_callback_raised_has_failed(build: Build) -> None:
    process = build()
    with contextlib.suppress(FloatingPointError), process.reporting(0.02):
        raise FloatingPointError
    assert state(process) == "failed"
    with process.reporting(0.02):
        process.learner.finish()
        assert process.outputs is not None
        process.outputs.callbacks.failure = "--callbacks: Upload.on_row raised OSError: no network"
    assert state(process) == "failed"
