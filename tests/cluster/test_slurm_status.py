"""What `status` says of a run that was submitted to Slurm."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from impala_tf.cluster import cluster_main as launcher
from impala_tf.cluster.node import state as files
from impala_tf.cluster.record import Launch, write
from impala_tf.machine.supervision import ProcessState

SEEN = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(1e9))


@pytest.mark.parametrize(
    ("queue", "was", "detail"),
    [
        ("7 PENDING, 0:00 of 4:00, 1 node(s) (BeginTime)", "was running", f"last seen {SEEN}"),
        ("7 RUNNING, 0:11 of 4:00, 1 node(s) n1", "running", "exit status 1"),
    ],
)
def test_only_processes_of_a_job_that_runs_are_called_running(
    queue: str,
    was: str,
    detail: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A job whose processes were killed while they ran waits in the queue again."""
    files.processes_folder(tmp_path).mkdir()
    write("7" * 16, Launch("slurm", str(tmp_path), 1.0, {"job": "7"}))
    status = {"state": "training", "environment_frames": 5000, "total_environment_frames": 9000}
    (tmp_path / "status.json").write_text(json.dumps(status))
    processes = {
        "actor-0": ProcessState("actor-0", "running", restarts=2, detail="exit status 1"),
        "actor-1": ProcessState("actor-1", "finished"),
    }
    node = files.NodeState("run", "node-actor-0", 1, 1, "boot", 1.0, 1e9, processes)
    files.write(files.state_path(tmp_path, node.node), node)
    squeue = tmp_path / "squeue"
    squeue.write_text(f"#!/bin/sh\necho '{queue}'\n")
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert launcher.main(["status", f"--logdir={tmp_path}"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert f"actors: 1 {was}, 1 finished" in lines
    assert lines[-2:] == [f"actor-0 {was} 2 {detail}", "actor-1 finished 0"]
