"""The pods of examples/kubernetes.yaml, as processes of this machine."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
import yaml

from impala_tf.cluster import join
from tests.helpers.ports import free_port
from tests.helpers.runs import PROJECT, Run, status

ENTRY, HEALTH = (str(PROJECT / "docker" / name) for name in ("entrypoint.py", "health.py"))


def arguments(role: str, folder: Path, port: int) -> list[str]:
    """The words of a pod's container, with this machine's paths and addresses."""
    text = (PROJECT / "examples" / "kubernetes.yaml").read_text()
    (job,) = (
        each
        for each in yaml.safe_load_all(text)
        if (each["kind"], each["metadata"]["name"]) == ("Job", f"pong-{role}")
    )
    (container,) = job["spec"]["template"]["spec"]["containers"]
    words = [
        re.sub(r"=/(runs|credentials)", rf"={folder}/{role}/\1", word)
        for word in container["args"]
        if not word.startswith(("--level_name", "--total_environment_frames"))
    ]
    return [word.replace("pong-learner-0.pong:8001", f"127.0.0.1:{port}") for word in words]


def health(temporary: Path) -> tuple[int, str]:
    """Returns what an image's HEALTHCHECK says: its status and its line."""
    done = subprocess.run(
        [sys.executable, HEALTH],
        env={**os.environ, "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    return done.returncode, done.stdout.strip()


def test_pods_find_each_other_are_healthy_and_leave_when_they_are_drained(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    """They share no disk, and all that they know of each other is the learner's name."""
    folders = [str(tmp_path / role / "credentials") for role in ("learner", "actor")]
    credentials = [sys.executable, str(PROJECT / "docker" / "credentials.py"), *folders]
    subprocess.run(credentials, check=True, env={**os.environ, "PYTHONPATH": str(PROJECT)})
    port, pods = free_port(), {}
    own = (
        "--level_name=CartPole-v1",
        "--total_environment_frames=100000000",
        "--envs_per_actor=8",
        "--metrics_interval_s=1",
    )
    for role in ("learner", "actor"):
        temporary = tmp_path / role / "tmp"
        temporary.mkdir()
        variables = {"JOB_COMPLETION_INDEX": "0", "TMPDIR": str(temporary)}
        words = [*arguments(role, tmp_path, port), *own]
        pods[role] = start(*words, environment=variables, script=[ENTRY])
    assert health(tmp_path) == (1, "no learner or actor was started in this container")
    logdir = tmp_path / "learner" / "runs" / "pong"
    pods["learner"].wait_until(lambda: status(logdir).get("environment_frames", 0) > 2000)
    for role, pod in pods.items():
        assert health(tmp_path / role / "tmp") == (0, "healthy")
        pod.process.terminate()
    for pod in pods.values():
        ended, out, err = pod.wait()
        assert ended == os.EX_TEMPFAIL, f"the Job would count it as failed: {out}{err}"
    assert any((logdir / "checkpoints").iterdir())


def test_a_learner_waits_until_its_name_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """DNS learns the name of a pod after it has started."""
    unknown = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    answers = mock.Mock(side_effect=[unknown, unknown, []])
    monkeypatch.setattr(socket, "getaddrinfo", answers)
    monkeypatch.setattr(join, "_POLL_S", 0.01)
    join._await_name("p-learner-0.p:8001")
    assert answers.call_count == 3
