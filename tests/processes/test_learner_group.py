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

FRAMES = 30_000
HOROVODRUN = Path(sys.executable).with_name("horovodrun")
START_S = 400.0
"""Time to start and to train a little, on a busy machine."""
GLOO_TIMEOUT_S = 30


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
    flags = flags_of(tmp_path, addresses, f"--total_environment_frames={FRAMES}")
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
    assert f"learner-0: lost learner-1 at {hosts[1]} (no answer)" in out, out + err
    assert first.alive() == []
    before = rows(tmp_path)
    assert int(before[-1]["environment_frames"]) < FRAMES

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
    assert frames[-1] >= FRAMES
    # The actors waited for the relaunch, continued, and were told that the run is over.
    assert [actor.wait(60)[0] for actor in actors] == [0, 0]


@pytest.mark.parametrize(("blow", "victim"), [(signal.SIGKILL, 0), (signal.SIGSTOP, 1)])
def test_a_learner_that_waits_for_a_batch_notices_a_lost_peer(
    start_pair, blow: int, victim: int, tmp_path: Path
):
    """Learners that wait for batches meet once a second. The lost one was in their last meeting."""
    timeout = {"HOROVOD_GLOO_TIMEOUT_SECONDS": str(GLOO_TIMEOUT_S)}
    hosts, runs = start_pair(*flags_of(tmp_path), **timeout)
    survivor = runs[1 - victim]
    both = ("status.json", "status-1.json")
    survivor.wait_until(lambda: all(status(tmp_path, name) for name in both), START_S)
    os.kill(runs[victim].process.pid, blow)
    # Gloo's timeout, 3 s to find out which peer does not answer, and the exit.
    code, out, err = survivor.wait(GLOO_TIMEOUT_S + 90)
    assert code == 1, out + err
    expected = f"learner-{1 - victim}: lost learner-{victim} at {hosts[victim]} (no answer); exit"
    assert expected in out
    assert "Traceback" not in out + err
