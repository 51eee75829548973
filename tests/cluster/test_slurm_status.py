"""What `status` says of a run that was submitted to Slurm."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from impala_tf.cluster import cluster_main as launcher
from impala_tf.cluster.node import state as files
from impala_tf.cluster.record import Launch, write
from impala_tf.machine.supervision import ProcessState


@pytest.fixture
def logdir(tmp_path: Path) -> Path:
    """The logdir of job 7, which was killed while it trained."""
    folder = tmp_path / "run"
    files.processes_folder(folder).mkdir(parents=True)
    write("7" * 16, Launch("slurm", str(folder), 1.0, {"job": "7"}))
    status = {"state": "training", "environment_frames": 5000, "total_environment_frames": 9000}
    (folder / "status.json").write_text(json.dumps(status))
    processes = {
        "actor-0": ProcessState("actor-0", "running", restarts=2, detail="exit status 1"),
        "actor-1": ProcessState("actor-1", "finished"),
    }
    node = files.NodeState("run", "node-actor-0", 1, 1, "boot", 1.0, 1e9, processes)
    files.write(files.state_path(folder, node.node), node)
    return folder


def said(logdir: Path, queue: str, patch: pytest.MonkeyPatch) -> int:
    """Asks for the status while `squeue` prints `queue`; returns the exit status."""
    squeue = logdir / "bin" / "squeue"
    squeue.parent.mkdir(exist_ok=True)
    squeue.write_text(f"#!/bin/sh\nprintf '{queue}'\n")
    squeue.chmod(0o755)
    patch.setenv("PATH", f"{squeue.parent}:/usr/bin:/bin")
    return launcher.main(["status", f"--logdir={logdir}"])


SEEN = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(1e9))


@pytest.mark.parametrize(
    ("queue", "was", "detail"),
    [
        ("", "was running", f"last seen {SEEN}"),
        ("7 PENDING, 0:00 of 4:00, 1 node(s) (BeginTime)\\n", "was running", f"last seen {SEEN}"),
        ("7 RUNNING, 0:11 of 4:00, 1 node(s) n1\\n", "running", "exit status 1"),
    ],
)
def test_only_processes_of_a_job_that_runs_are_called_running(
    queue: str,
    was: str,
    detail: str,
    logdir: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert said(logdir, queue, monkeypatch) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert f"actors: 1 {was}, 1 finished" in lines
    assert lines[-2:] == [f"actor-0 {was} 2 {detail}", "actor-1 finished 0"]


def test_half_a_status_hides_no_process(
    logdir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A full disk cuts it, and then the user asks what is wrong."""
    (logdir / "status.json").write_text('{"state": "trai')
    assert said(logdir, "", monkeypatch) == 0
    assert "actor-1 finished" in " ".join(capsys.readouterr().out.split())
