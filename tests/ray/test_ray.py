"""--engine=ray on a real Ray cluster, whose nodes are processes of this machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.ports import free_port
from tests.helpers.ray_nodes import RayNodes
from tests.helpers.runs import PROJECT, checkpointed_frames
from tests.helpers.submitted import Submitted, printed_by
from tests.helpers.waiting import wait_until

pytestmark = [pytest.mark.ray, pytest.mark.xdist_group("ray")]
FOREVER = "--total_environment_frames=100000000"


@pytest.fixture(scope="module")
def nodes() -> Iterator[RayNodes]:
    cluster = RayNodes()
    try:
        yield cluster
    finally:
        cluster.close()


class RayRun(Submitted):
    """A run on these nodes."""

    def __init__(self, nodes: RayNodes, logdir: Path, *flags: str, cwd: Path = PROJECT) -> None:
        super().__init__(nodes.environment, logdir)
        all_flags = ["--engine=ray", f"--logdir={logdir}", "--metrics_interval_s=1", *flags]
        command = [sys.executable, str(PROJECT / "run_experiment.py"), *all_flags]
        said = printed_by(nodes.environment, *command, cwd=cwd)
        assert "submitted to the Ray cluster" in said

    def log(self, name: str) -> str:
        path = self.logdir / "processes" / f"{name}.log"
        return path.read_text() if path.exists() else ""

    def wait_for(self, name: str, text: str) -> None:
        """Waits until a process has printed `text`."""
        wait_until(lambda: text in self.log(name), 300, what=text, explain=self.explain)

    def wait_for_status(self, line: str) -> str:
        """Waits until status prints a line that matches; returns what it prints."""
        found = wait_until(
            lambda: said if re.search(line, said := self.frontend("status")) else "",
            300, what=line, explain=self.explain, poll_s=3,
        )  # fmt: skip
        return str(found)

    def explain(self) -> str:
        return self.frontend("status") + self.log("learner-0")


def test_a_run_survives_its_nodes(nodes: RayNodes, tmp_path: Path) -> None:
    """It waits for its second node; then each kind of node is lost and replaced."""
    first = nodes.add(1, survives=1)
    run = RayRun(
        nodes, tmp_path / "run", "--level_name=tests.helpers.worlds:CalmCartPole-v1",
        "--num_actors=2", "--ray_learner_resources=CPU=1,survives=1", "--checkpoint_interval_s=2",
        FOREVER,
    )  # fmt: skip
    run.wait_for_status("node-learner-0: waits for room")
    second = nodes.add(2)
    run.wait_for("learner-0", "actor actor-1 joined")

    nodes.remove(second)
    run.wait_for_status("actor-0 +was running")
    nodes.add(2)
    run.wait_for_status("actor-0 +[0-9.]+ +running")
    # Only now: nodes of one machine share a folder for code, and each unpacks it there again.
    spare = nodes.add(1, survives=1)
    wait_until(lambda: checkpointed_frames(run.logdir), explain=run.explain, poll_s=0.5)
    seen = run.frames()
    nodes.remove(first)
    run.wait_for("learner-0", "resuming from")
    assert re.search(r"resuming from .*, [1-9][\d,]* frames", run.log("learner-0"))
    run.wait_for_frames(seen)
    run.wait_for_status(f"learner-0 +{re.escape(spare.node_ip_address)} +running")

    assert "write a checkpoint" in run.frontend("stop")
    end = run.wait_for_status("has left Ray")
    assert re.search(r"learner-0 +stopped", end) and re.search("actor-1 +(stopped|finished)", end)
    assert re.search(r"stopped at .* frames; checkpoint ", run.frontend("logs", "learner-0"))


def test_two_learners_train_an_own_level_to_the_end(nodes: RayNodes, tmp_path: Path) -> None:
    """The module of the level is in the current folder, and nodes get a copy of it."""
    shutil.copy(PROJECT / "examples" / "own_level.py", tmp_path)
    for _ in range(2):
        nodes.add(1, pair=1)
    nodes.add(2)
    run = RayRun(
        nodes, tmp_path / "run", "--level_name=own_level:Corridor", "--num_learners=2",
        "--num_actors=2", "--ray_learner_resources=CPU=1,pair=1",
        "--total_environment_frames=10000", cwd=tmp_path,
    )  # fmt: skip
    end = run.wait_for_status("has left Ray")
    finals = []
    for name in ("learner-0", "learner-1"):
        assert re.search(rf"{name} +finished", end)
        finals += re.findall(r"final parameters (\w+)", run.log(name))[-1:]
    assert len(finals) == 2 and finals[0] == finals[1]
    assert run.frames() >= 10_000


def test_a_run_without_room_is_cancelled(nodes: RayNodes, tmp_path: Path) -> None:
    run = RayRun(
        nodes, tmp_path / "run", "--level_name=CartPole-v1", "--ray_learner_resources=nowhere=1"
    )
    assert "is cancelled" in run.frontend("stop")
    run.wait_for_status("has left Ray")


def test_an_address_without_a_cluster_is_named_at_once(tmp_path: Path) -> None:
    """Ray itself would wait for minutes."""
    address = f"127.0.0.1:{free_port()}"
    flags = ["--engine=ray", "--level_name=CartPole-v1", f"--logdir={tmp_path / 'run'}"]
    done = subprocess.run(
        [sys.executable, "run_experiment.py", *flags], cwd=PROJECT, capture_output=True, text=True,
        timeout=240, env={**os.environ, "RAY_ADDRESS": address},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert f"RAY_ADDRESS={address}: no Ray cluster answers there (" in line
