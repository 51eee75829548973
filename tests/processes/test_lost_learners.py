"""Two learners of three are lost for good: the third goes on, and one that comes back joins it."""

from __future__ import annotations

import itertools
import math
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import hasty_node
from tests.helpers.ports import free_port
from tests.helpers.runs import Run, checkpointed_frames, rows, status
from tests.helpers.waiting import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]
HOSTS = ("127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4")
BATCH, LENGTH = 8, 20


def trains_with(logdir: Path, members: int, frames: int) -> Callable[[], bool]:
    """Returns whether so many learners train, and have come further than `frames`."""

    def found() -> bool:
        now = status(logdir)
        return (
            now.get("state") == "training"
            and now["num_learners"] == members
            and now["environment_frames"] > frames
        )

    return found


def actors(logdir: Path) -> list[str]:
    return sorted(
        actor["name"]
        for path in logdir.glob("status*.json")
        for actor in status(logdir, path.name)["actors"]
        if status(logdir, path.name)["updated_unix_s"] > time.time() - 5
    )


def frames_of(logdir: Path) -> int:
    return int(status(logdir)["environment_frames"])


def test_two_of_three_learners_are_lost_and_one_returns(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    logdir = tmp_path / "run"
    hosts = ",".join(f"{host}:{free_port()}" for host in HOSTS[:3])
    flags = [
        "--join", f"--learner_hosts={hosts}", "--actors_per_node=3",
        "--level_name=tests.helpers.worlds:CalmCartPole-v1", "--algorithm=impala",
        f"--logdir={logdir}", "--metrics_interval_s=1",
        "--checkpoint_interval_s=2", f"--batch_size={BATCH}", f"--unroll_length={LENGTH}",
        "--envs_per_actor=8", "--updates_per_batch=1", "--total_environment_frames=1000000000",
    ]  # fmt: skip

    def start_node(number: int) -> Run:
        variables: dict[str, Any] = {
            "SKYPILOT_NODE_IPS": "\n".join(HOSTS),
            "SKYPILOT_NODE_RANK": str(number),
            "HOROVOD_GLOO_IFACE": "lo",
        }
        return start(*flags, environment=variables, script=[str(hasty_node.__file__)])

    nodes = [start_node(number) for number in range(len(HOSTS))]
    nodes[0].wait_until(lambda: checkpointed_frames(logdir) > 10_000, 400)
    assert trains_with(logdir, 3, 0)()
    wait_until(lambda: actors(logdir) == ["actor-0", "actor-1", "actor-2"], 240)

    for node in nodes[1:3]:
        node.end()
    lost_frames = frames_of(logdir)
    nodes[0].wait_until(trains_with(logdir, 1, lost_frames), 300)
    assert [each["learner"] for each in status(logdir)["away_learners"]] == [1, 2]
    # The actors of the lost learners act for the one that is left.
    wait_until(lambda: actors(logdir) == ["actor-0", "actor-1", "actor-2"], 240)

    alone_frames = frames_of(logdir)
    nodes[2] = start_node(2)
    nodes[0].wait_until(trains_with(logdir, 2, alone_frames), 300)
    assert [each["learner"] for each in status(logdir)["away_learners"]] == [1]
    wait_until(lambda: actors(logdir) == ["actor-0", "actor-1", "actor-2"], 240)
    nodes[0].wait_until(trains_with(logdir, 2, frames_of(logdir) + 5_000), 240)

    # A rented machine is told that it is taken away: the other one goes on, from this moment.
    os.kill(nodes[2].process.pid, signal.SIGTERM)
    ends = [nodes[2].wait(240)]
    nodes[0].wait_until(trains_with(logdir, 1, frames_of(logdir)), 300)
    for node in (nodes[0], nodes[3]):
        os.kill(node.process.pid, signal.SIGINT)
    ends = [nodes[0].wait(240), *ends, nodes[3].wait(240)]
    assert [code for code, _, _ in ends] == [0, os.EX_TEMPFAIL, 0], ends
    said = [out for _, out, _ in ends]
    assert "learner-0 of 3 learners start without learner-1, learner-2" in said[0]
    assert "learner-2 is back: the group starts again" in said[0]
    assert "training with 2 of 3 learners, without learner-1" in said[0]
    last = [re.findall(r"(learner-\d): final parameters (\w+)", out)[-1] for out in said[:2]]
    assert [name for name, _ in last] == ["learner-0", "learner-2"]
    assert last[0][1] == last[1][1], "two learners have trained apart"

    found = [(int(row["learner_updates"]), int(row["environment_frames"])) for row in rows(logdir)]
    assert found == sorted(found)
    steps = [
        (frames - before) / (updates - updates_before)
        for (updates_before, before), (updates, frames) in zip(found, found[1:], strict=False)
    ]
    of_learner = BATCH * LENGTH
    # Resets are no frames, so there are a few less than in the learners' batches.
    groups = [count for count, _ in itertools.groupby(math.ceil(s / of_learner) for s in steps)]
    assert groups == [3, 1, 2, 1]
