"""Runs on this machine while something is wrong with it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.disks import fill
from tests.helpers.runs import Run, checkpointed_frames, rows, status, words_of

pytestmark = pytest.mark.faults
FLAGS = ("--level_name=tests.helpers.worlds:CalmCartPole-v1", "--num_actors=2",
         "--total_environment_frames=1000000000",
         "--envs_per_actor=4", "--metrics_interval_s=1", "--checkpoint_interval_s=1")  # fmt: skip


@pytest.mark.always
def test_training_goes_on_while_the_disk_is_full_and_an_end_then_says_what_is_lost(
    small_disk: Path, start: Callable[..., Run]
) -> None:
    logdir = small_disk / "run"
    run = start(*FLAGS, f"--logdir={logdir}")
    run.wait_until(lambda: checkpointed_frames(logdir) > 0 and len(rows(logdir)) > 2)
    filler = fill(small_disk)
    run.wait_until(lambda: cannot_write(logdir))
    before = status(logdir)["agent_steps"]
    run.wait_until(lambda: status(logdir)["agent_steps"] > before + 2_000)
    kept = checkpointed_frames(logdir)
    assert kept > 0, "the checkpoints from before are gone"
    filler.unlink()
    run.wait_until(lambda: status(logdir)["storage_trouble"] is None)
    run.wait_until(lambda: checkpointed_frames(logdir) > kept + 2_000)
    counts = [int(row["environment_frames"]) for row in rows(logdir)]
    assert counts == sorted(set(counts))
    fill(small_disk)
    run.wait_until(lambda: cannot_write(logdir))
    run.process.send_signal(signal.SIGINT)
    assert "cannot write" in assert_says_what_is_lost(run)


def test_an_end_on_a_full_disk_says_what_is_lost(
    small_disk: Path, start: Callable[..., Run]
) -> None:
    logdir = small_disk / "run"
    run = start(*FLAGS, "--total_environment_frames=20000", f"--logdir={logdir}")
    run.wait_until(lambda: checkpointed_frames(logdir) > 0 and len(rows(logdir)) > 2)
    fill(small_disk)
    assert_says_what_is_lost(run)


def assert_says_what_is_lost(run: Run) -> str:
    """Waits for the end of a run; returns what it has printed."""
    code, out, err = run.wait()
    assert code == 1, err + out
    assert "No space left on device; the last good checkpoint is" in err
    return out


def cannot_write(logdir: Path) -> bool:
    """Tells whether a run says that it cannot write: its disk is full."""
    trouble = status(logdir).get("storage_trouble")
    return trouble is not None and "No space left on device" in trouble["text"]


def test_a_run_whose_actors_are_stopped_starves_and_then_goes_on(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    run = start(*FLAGS, f"--logdir={tmp_path}")
    run.wait_until(lambda: len(rows(tmp_path)) > 2)
    actors = {pid for pid in run.alive() if "--job_name=actor" in words_of(pid)}
    assert len(actors) == 2
    for pid in actors:
        os.kill(pid, signal.SIGSTOP)
    run.wait_until(lambda: status(tmp_path)["starving_since_unix_s"] is not None)
    row = status(tmp_path)["row"]
    assert row["agent_steps_per_s"] == row["frames_per_s"] == 0
    before, written_s = status(tmp_path)["agent_steps"], status(tmp_path)["updated_unix_s"]
    # The launcher looks each quarter of a second, and may be late.
    run.wait_until(lambda: status(tmp_path)["updated_unix_s"] > written_s + 2)
    for pid in actors:
        os.kill(pid, signal.SIGCONT)
    run.wait_until(lambda: status(tmp_path)["agent_steps"] > before)
    run.wait_until(lambda: status(tmp_path)["starving_since_unix_s"] is None)
    run.process.send_signal(signal.SIGINT)
    code, out, err = run.wait()
    assert code == 0, err + out
    assert "starving since" in out
