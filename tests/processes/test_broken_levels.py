"""Runs on levels that break: nothing bad is learned, and the run says what is wrong."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.runs import Run, rows

pytestmark = pytest.mark.faults


def test_a_level_that_breaks_at_once_ends_the_run_soon_and_says_why(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    """What is wrong stands in the run's own output: few people look for it in logs."""
    run = start(
        "--level_name=tests.helpers.broken_worlds:BrokenAtOnceCartPole-v1",
        "--num_actors=2",
        "--envs_per_actor=2",
        f"--logdir={tmp_path}",
    )
    status, out, err = run.wait()
    assert status == 1, out + err
    assert re.search(
        r"starting: waiting for the first unrolls, actor-\d(.*): its environments broke, and are"
        r" made again in 2 s \(restart \d\): environment \d of .*: observation is NaN",
        out,
    ), out
    assert "actor-1 failed: exit status 3 after" in out, out
    assert "no actor is left; the last one said:" in err
    assert "broke 6 times, so this actor gives up; at last environment" in err


@pytest.mark.always
def test_a_run_whose_environments_broke_once_ends_well(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    """They have processes of their own. An actor that fails at its end is restarted for ever."""
    logdir = tmp_path / "run"
    run = start(
        "--level_name=tests.helpers.broken_worlds:BrokenOnceCartPole-v1",
        "--environment_processes",
        "--num_actors=1",
        "--envs_per_actor=3",
        "--unroll_length=10",
        "--batch_size=3",
        "--total_environment_frames=3000",
        f"--logdir={logdir}",
        environment={"IMPALA_TF_TEST_BROKEN": str(tmp_path / "broken")},
    )
    status, out, err = run.wait()
    assert status == 0, out + err
    log = (logdir / "processes" / "actor-0.log").read_text()
    assert re.search("the pole is broken.*; made again in", log), log
    assert "the run is over" in log and "Traceback" not in log.partition("made again")[2], log
    assert "actor-0 finished: done" in log, log


def test_a_run_whose_updates_were_all_skipped_fails_and_says_so(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    """It would fail again: its author wants to see the error now, not after three restarts."""
    run = start(
        "--level_name=CartPole-v1",
        "--baseline_cost=1e38",  # the squares of such gradients are infinite
        "--num_actors=1",
        f"--logdir={tmp_path}",
    )
    status, out, err = run.wait()
    assert status == 1, out + err
    assert "the learner failed: " in err
    last = rows(tmp_path)[-1]
    assert int(last["updates_skipped"]) == int(last["learner_updates"]) > 0
    skipped = f"{last['updates_skipped']} updates skipped for gradients that were not finite"
    assert re.search(r"^failed: [\d,]+ of [\d,]+ frames, mean return [^%]+, " + skipped, out, re.M)
