"""The batch script of --engine=slurm, and what is refused before anything is submitted."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from impala_tf.cluster.engines import slurm
from impala_tf.config import Given, user_commands

GOLDEN = Path(__file__).with_name("slurm.golden.sh")
FLAGS = {
    "engine": "slurm", "num_learners": 2, "slurm_actors": 3,
    "slurm_options": "--time=12:00:00 --partition=long",
    "slurm_learner_options": "--gpus-per-node=1",
    "fresh": True, "seed": 3,
    "level_kwargs": '{"a": 1}',
}  # fmt: skip


def render(**flags: object) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "cwd", lambda: Path("/home/me/impala_tf"))
        patch.setattr("sys.executable", ".venv/bin/python")
        patch.setattr(user_commands, "program", lambda: ("run.py",))
        return slurm.render(Given({**FLAGS, **flags, "logdir": "/shared/my runs/pong 3"}))


def test_the_script_is_as_agreed() -> None:
    """Look at every change of it, and try it on a real Slurm: make test-slurm."""
    assert render() == GOLDEN.read_text()
    for text in (render(), render(num_learners=1, slurm_actors=0)):
        subprocess.run(["bash", "-n"], input=text, text=True, check=True)
