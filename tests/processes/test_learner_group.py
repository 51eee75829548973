"""A learner of a group dies or hangs: the others exit, name it, and a relaunch resumes."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import pytest

from tests.helpers.ports import free_port
from tests.helpers.runs import Run, checkpointed_frames, rows, status, words_of

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]

HOROVODRUN = Path(sys.executable).with_name("horovodrun")
START_S = 400.0
"""Time to start and to train a little, on a busy machine."""


def flags_of(logdir: Path, *more: str) -> tuple[str, ...]:
    return (
        f"--logdir={logdir}",
        "--level_name=tests.helpers.worlds:CalmCartPole-v1",
        "--envs_per_actor=8",
        "--metrics_interval_s=1",
        "--checkpoint_interval_s=1",
        *more,
    )


def learner(run: Run, rank: int) -> int:
    """Returns the process of a learner that horovodrun started."""
    for pid in run.alive():
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        if "--job_name=learner" in words_of(pid) and f"HOROVOD_RANK={rank}".encode() in variables:
            return pid
    raise AssertionError(f"no learner of rank {rank}")


@pytest.mark.always
def test_a_killed_learner_ends_the_group_and_a_relaunch_resumes(start, tmp_path: Path):
    hosts = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    addresses = f"--learner_hosts={','.join(hosts)}"
    flags = flags_of(tmp_path, addresses, "--total_environment_frames=1000000000")
    under_horovodrun = {"launcher": (str(HOROVODRUN), "-np", "2")}

    first = start(*flags, "--job_name=learner", **under_horovodrun)
    # The credentials that actors need are there before the status is.
    first.wait_until(lambda: status(tmp_path) != {}, START_S)
    actors = [start(*flags, "--job_name=actor", f"--task={task}") for task in range(2)]
    first.wait_until(
        lambda: len(rows(tmp_path)) >= 2 and checkpointed_frames(tmp_path) > 0, START_S
    )
    both = ("status.json", "status-1.json")
    first.wait_until(lambda: all(status(tmp_path, name)["state"] == "training" for name in both))
    os.kill(learner(first, rank=1), signal.SIGKILL)
    code, out, err = first.wait(120)
    assert code != 0
    assert "learner-0: lost learner-1;" in out, out + err
    assert first.alive() == []
    before = rows(tmp_path)

    total = int(before[-1]["environment_frames"]) + 5_000
    flags = (*flags, f"--total_environment_frames={total}")
    second = start(*flags, "--job_name=learner", **under_horovodrun)
    code, out, err = second.wait(START_S)
    assert code == 0, out + err
    assert "resuming from" in out
    ends = dict(re.findall(r"(learner-\d): final parameters (\w+)", out))
    assert set(ends) == {"learner-0", "learner-1"}
    assert ends["learner-0"] == ends["learner-1"]
    frames = [int(row["environment_frames"]) for row in rows(tmp_path)]
    assert frames == sorted(frames)
    assert frames[0] == int(before[0]["environment_frames"])
    assert frames[-1] >= total
    # The actors waited for the relaunch, continued, and were told that the run is over.
    assert [actor.wait(60)[0] for actor in actors] == [0, 0]


def test_a_learner_that_waits_for_a_batch_notices_a_lost_peer(start_pair, tmp_path: Path):
    """Learners that wait for batches meet once a second. The lost one was in their last meeting."""
    _, runs = start_pair(*flags_of(tmp_path))
    both = ("status.json", "status-1.json")
    runs[1].wait_until(lambda: all(status(tmp_path, name) for name in both), START_S)
    os.kill(runs[0].process.pid, signal.SIGKILL)
    code, out, err = runs[1].wait(120)
    assert code == 1, out + err
    assert "learner-1: lost learner-0; exit" in out
    assert "Traceback" not in out + err
