"""--join: the same command on every node of a job, here nodes of this machine."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

from tests.helpers.ports import free_port
from tests.helpers.runs import Run

HOSTS = ("127.0.0.1", "127.0.0.2", "127.0.0.3")


def test_two_learners_train_until_told_to_leave_and_then_to_the_end(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    """An engine takes a job's nodes away and starts it again. No launcher is involved."""
    logdir = tmp_path / "run"

    def start_nodes(frames: int) -> list[Run]:
        hosts = ",".join(f"{host}:{free_port()}" for host in HOSTS[:2])
        flags = ["--join", f"--learner_hosts={hosts}", "--actors_per_node=2",
                 "--level_name=tests.helpers.worlds:CalmCartPole-v1", f"--logdir={logdir}",
                 "--metrics_interval_s=1", f"--total_environment_frames={frames}"]  # fmt: skip
        variables = {"SKYPILOT_NODE_IPS": "\n".join(HOSTS), "HOROVOD_GLOO_IFACE": "lo"}
        return [
            start(*flags, environment={**variables, "SKYPILOT_NODE_RANK": str(rank)})
            for rank in range(len(HOSTS))
        ]

    def frames() -> int:
        path = logdir / "status.json"
        return int(json.loads(path.read_text())["environment_frames"]) if path.exists() else 0

    nodes = start_nodes(10_000_000)
    nodes[0].wait_until(lambda: frames() > 2_000)
    for node in nodes:
        os.kill(node.process.pid, signal.SIGTERM)
    ends = [node.wait() for node in nodes]
    assert [status for status, _, _ in ends] == [os.EX_TEMPFAIL] * 3, ends

    total = frames() + 10_000
    ends = [node.wait() for node in start_nodes(total)]
    assert [status for status, _, _ in ends] == [0] * 3, ends
    learners = [out for _, out, _ in ends[:2]]
    assert "resuming from" in learners[0]
    assert len({re.findall(r"final parameters (\w+)", out)[-1] for out in learners}) == 1
    assert frames() >= total
