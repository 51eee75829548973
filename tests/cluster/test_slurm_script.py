"""The batch script of --engine=slurm, and what is refused before anything is submitted."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from pathlib import Path

import pytest

from impala_tf.cluster.engines import slurm
from impala_tf.config import ConfigError, Given, user_commands

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


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_stop_as_the_time_ends_is_not_lost(is_stopped: bool, tmp_path: Path) -> None:
    """The script runs for real, on commands that only write down how they were called."""
    calls, mark, srun = tmp_path / "calls", tmp_path / "slurm-7.stopped", tmp_path / "srun.pid"
    told = "kill -USR1 $PPID"  # that its time is nearly over; a run that is then ended has left: 75
    programs = {
        "srun": f"trap 'exit 75' TERM; echo $$ > {srun}; {told}; while :; do sleep 0.1; done",
        "scancel": f"{f'touch {mark};' if is_stopped else ''} kill -TERM $(cat {srun})",
        "scontrol": "",
    }
    for name, does in programs.items():
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f'#!/bin/bash\necho "{name} $*" >> {calls}\n{does}\n')
        path.chmod(0o755)
    script = slurm.render(
        Given({**FLAGS, "num_learners": 1, "slurm_actors": 0, "logdir": str(tmp_path)})
    )
    environment = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}
    bash = ["bash", "-c", script]
    ended = subprocess.run(bash, env=environment, timeout=60)
    assert ended.returncode == 0
    assert ("scontrol requeue 7" in calls.read_text()) == (not is_stopped)
    if is_stopped:  # Slurm starts a job again whose node was lost, too
        calls.unlink()
        again = subprocess.run(bash, env=environment, capture_output=True, text=True, check=True)
        assert "job 7 was stopped" in again.stdout
        assert not calls.exists()


@pytest.mark.parametrize("options", ["partition=x", "--a\n#SBATCH --b", "--a='"])
def test_what_is_no_option_is_named(options: str) -> None:
    with pytest.raises(ConfigError, match="--slurm_options="):
        render(slurm_options=options)


def test_learners_without_horovod_are_warned_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They say it once they have their nodes, which may be days later."""
    sbatch = tmp_path / "sbatch"
    sbatch.write_text("#!/bin/sh\necho 7\n")
    sbatch.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    flags = {**FLAGS, "level_name": "CartPole-v1", "logdir": str(tmp_path / "run")}
    assert slurm.submit(Given(flags)) == 0
    assert "install_horovod.sh" in capsys.readouterr().err
