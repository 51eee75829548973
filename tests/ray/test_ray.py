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
from tests.helpers.runs import PROJECT
from tests.helpers.submitted import Submitted, printed_by
from tests.helpers.waiting import wait_until

pytestmark = [pytest.mark.ray, pytest.mark.xdist_group("ray")]
FOREVER = 100_000_000


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

    def wait_until_it_runs(self, name: str, address: str) -> None:
        """Waits until status says that a process runs on a node."""
        line = rf"{name} +{re.escape(address)} +running"
        wait_until(
            lambda: re.search(line, self.frontend("status")), what=line,
            explain=self.explain, poll_s=3,
        )  # fmt: skip

    def wait_until_it_has_left(self) -> str:
        """Returns what status says once nothing of the run is in Ray."""
        wait_until(
            lambda: "has left Ray" in self.frontend("status"), 300, explain=self.explain, poll_s=3
        )
        return self.frontend("status")

    def explain(self) -> str:
        return self.frontend("status") + self.log("learner-0")


def test_a_run_survives_its_nodes(nodes: RayNodes, tmp_path: Path) -> None:
    """An actor waits for a node; then the learner's node is lost. Then the run is stopped."""
    first = nodes.add(2, survives=1)
    run = RayRun(
        nodes, tmp_path / "run", "--level_name=tests.helpers.worlds:CalmCartPole-v1",
        "--num_actors=2",
        "--ray_learner_resources=CPU=1,survives=1", "--checkpoint_interval_s=2",
        f"--total_environment_frames={FOREVER}",
    )  # fmt: skip
    run.wait_for_frames()
    run.wait_until_it_runs("actor-0", first.node_ip_address)
    assert re.search("actor-1 +waits for room", run.frontend("status"))

    second = nodes.add(3, survives=1)
    run.wait_for("learner-0", "actor actor-1 joined")

    saved = run.frames()
    nodes.remove(first)
    run.wait_for("learner-0", "resuming from")
    assert re.search(r"resuming from .*, [1-9][\d,]* frames", run.log("learner-0"))
    run.wait_for_frames(saved)
    for name in ("learner-0", "actor-0", "actor-1"):  # the last one with the new address
        run.wait_until_it_runs(name, second.node_ip_address)

    assert "write a checkpoint" in run.frontend("stop")
    end = run.wait_until_it_has_left()
    assert re.search(r"learner-0 +stopped", end)
    assert re.search(r"stopped at .* frames; checkpoint ", run.frontend("logs", "learner-0"))
    nodes.remove(second)


def test_two_learners_train_an_own_level_to_the_end(nodes: RayNodes, tmp_path: Path) -> None:
    """The module of the level is in the current folder, and nodes get a copy of it."""
    shutil.copy(PROJECT / "examples" / "own_level.py", tmp_path)
    node = nodes.add(4, pair=2)
    run = RayRun(
        nodes, tmp_path / "run", "--level_name=own_level:Corridor", "--num_learners=2",
        "--num_actors=2", "--ray_learner_resources=CPU=1,pair=1",
        "--total_environment_frames=10000", cwd=tmp_path,
    )  # fmt: skip
    for name in ("learner-0", "learner-1"):
        run.wait_for(name, "final parameters")
    end = run.wait_until_it_has_left()
    for name in ("learner-0", "learner-1"):
        assert re.search(rf"{name} +finished", end)
    finals = [re.findall(r"final parameters (\w+)", run.log(f"learner-{k}"))[-1] for k in (0, 1)]
    assert finals[0] == finals[1]
    assert run.frames() >= 10_000
    nodes.remove(node)


def test_an_address_without_a_cluster_is_named_at_once(tmp_path: Path) -> None:
    """Ray itself would wait for minutes."""
    address = f"127.0.0.1:{free_port()}"
    flags = ["--engine=ray", "--level_name=CartPole-v1",
             f"--logdir={tmp_path / 'run'}"]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "run_experiment.py", *flags], cwd=PROJECT, capture_output=True, text=True,
        timeout=240, env={**os.environ, "RAY_ADDRESS": address},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert f"RAY_ADDRESS={address}: no Ray cluster answers there (" in line
    assert not (tmp_path / "run").exists()
