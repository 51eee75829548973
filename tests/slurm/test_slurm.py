"""--engine=slurm on a real Slurm with three nodes, which are daemons of this machine."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.slurm import Slurm
from tests.helpers.submitted import Submitted, printed_by
from tests.helpers.waiting import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm")]
FOREVER = "--total_environment_frames=100000000"
LEVEL = "tests.helpers.worlds:CalmCartPole-v1"


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    cluster = Slurm(tmp_path_factory.mktemp("slurm"), 3)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()


class Job(Submitted):
    """A run on this cluster."""

    def __init__(self, slurm: Slurm, logdir: Path, *flags: str) -> None:
        super().__init__(slurm.environment, logdir)
        all_flags = ["--engine=slurm", f"--level_name={LEVEL}", f"--logdir={logdir}",
                     "--actors_per_node=1", "--metrics_interval_s=1", *flags]  # fmt: skip
        said = printed_by(slurm.environment, sys.executable, "run_experiment.py", *all_flags)
        self.number = re.findall(r"submitted job (\d+)", said)[0]

    def output(self) -> str:
        path = self.logdir / f"slurm-{self.number}.out"
        return path.read_text() if path.exists() else ""

    explain = output

    def wait_for(self, text: str) -> None:
        wait_until(lambda: text in self.output(), what=text, explain=self.output)

    def wait_until_over(self) -> None:
        def is_over() -> bool:
            return "not in the queue" in self.frontend("status")

        wait_until(is_over, explain=self.output, poll_s=1)

    def state(self) -> str:
        """How Slurm says that the whole job ended."""
        said = printed_by(self.environment, "scontrol", "show", "job", self.number)
        return re.findall(r"JobState=(\w+)", said)[0]


def test_a_run_goes_to_its_end(slurm: Slurm, tmp_path: Path) -> None:
    run = Job(slurm, tmp_path / "run", "--slurm_actors=2", "--total_environment_frames=2000")
    run.wait_for("done at 2")
    run.wait_until_over()
    assert run.state() == "COMPLETED"
    said = run.frontend("status")
    assert re.search(r"done: 2,\d{3} of 2,000 frames", said)
    assert re.search(r"learner-0 +finished", said)
    for name in ("actor-0", "actor-1"):  # one that had not joined yet when the run ended has left
        assert re.search(rf"{name} +(finished|left)", said)
    assert "done at 2" in run.frontend("logs", "learner-0")


def test_a_lost_node_starts_the_job_again_and_the_run_resumes(slurm: Slurm, tmp_path: Path) -> None:
    run = Job(slurm, tmp_path / "run", "--slurm_actors=2", FOREVER, "--checkpoint_interval_s=2")
    run.wait_for_frames()
    node = slurm.nodes[2]
    slurm.kill(node)
    run.wait_for("NODE FAILURE")
    slurm.boot(node)
    run.wait_for("resuming from")
    assert re.search(r"resuming from .*, [1-9][\d,]* frames", run.output())
    run.wait_for_frames(run.frames())
    run.frontend("stop")
    run.wait_until_over()


def test_a_time_limit_ends_in_a_checkpoint_and_the_run_resumes(
    slurm: Slurm, tmp_path: Path
) -> None:
    """Then a stop ends it for good."""
    # Two minutes before the end, the learner is told, or up to one before that: here after one or
    # two. So there is a minute after the resume before it is told again.
    run = Job(
        slurm, tmp_path / "run", FOREVER, "--slurm_options=--time=4", "--checkpoint_interval_s=999"
    )
    run.wait_for("stopped at ")
    first = int(re.findall(r"stopped at ([\d,]+) frames", run.output())[0].replace(",", ""))
    assert first > 0
    run.wait_for(f"resuming from {run.logdir}/checkpoints")
    assert f", {first:,} frames" in run.output()
    run.wait_for_frames(first)
    assert "write a checkpoint" in run.frontend("stop")
    run.wait_until_over()
    assert run.state() == "COMPLETED"
    assert run.output().count("stopped at ") == 2
