"""Nodes of --join: how many actors they start, and what a logdir that cannot be used does."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import threading
from pathlib import Path

import pytest

from impala_tf.cluster import join
from impala_tf.cluster.node import state as files
from impala_tf.config import Config, ConfigError, Given, user_commands
from impala_tf.machine import certificates
from tests.helpers.cores import pretend


def started(logdir: Path) -> str:
    """Starts learner 0's node, which must be refused; returns the line."""
    with pytest.raises(ConfigError) as caught:
        join.run_node(
            Given({"join": True, "job_name": "learner", "task": 0, "logdir": str(logdir),
                   "learner_hosts": "127.0.0.1:8001", "actor_hosts": "127.0.0.2:8001"}),
            Config(),
        )  # fmt: skip
    (line,) = caught.value.problems
    return line


def test_a_second_process_that_is_the_same_node_says_so_and_changes_no_orders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It waited for ever without a word, and the first got its orders."""
    monkeypatch.setattr(join, "LOCK_WAIT_S", 0.6)
    path = files.lock_path(tmp_path, "node-learner-0")
    path.parent.mkdir()
    with path.open("w") as first:
        fcntl.flock(first, fcntl.LOCK_EX)
        line = started(tmp_path)
    assert line.startswith(f"--logdir={tmp_path}: another process is node-learner-0 there; stop it")
    assert capsys.readouterr().err == (
        f"{path}: another process is node-learner-0; waiting until it ends\n"
    )
    assert not files.orders_path(tmp_path, "node-learner-0").exists()


@pytest.mark.parametrize(
    ("function", "number", "problem"),
    [
        ("fcntl.flock", errno.ENOSYS, "this file system has no file locks"),
        ("impala_tf.cluster.node.state.write", errno.ENOSPC, "cannot write there: No space left"),
    ],
)
def test_a_disk_that_cannot_be_used_is_named(
    function: str, number: int, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(function, fail)
    assert started(tmp_path).startswith(f"--logdir={tmp_path}: {problem}")


def test_a_node_that_is_started_again_waits_for_the_one_that_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """An engine starts a lost node again while its last process still writes a checkpoint."""
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    monkeypatch.setattr(user_commands, "program", lambda: ("-c", "print('it ran')"))
    certificates.create(tmp_path / "credentials")
    path = files.lock_path(tmp_path, "node-actor-0")
    path.parent.mkdir()
    first = path.open("w")
    fcntl.flock(first, fcntl.LOCK_EX)
    ends = threading.Timer(0.7, first.close)
    ends.start()
    node = {"job_name": "actor", "task": 0, "actors_per_node": 1, "logdir": str(tmp_path)}
    assert join.run_node(Given({**node, "learner_hosts": "127.0.0.1:8001"}), Config()) == 0
    ends.join()
    said = capfd.readouterr()
    assert "waiting until it ends" in said.err and "it ran" in said.out


@pytest.mark.parametrize(
    ("variable", "actors"),
    [("3", 3), ("16", 8), ("0", 8), ("", 8), ("8(x2)", 8), (None, 8)],
)
def test_a_node_of_slurm_has_no_more_actors_than_cores_of_its_own(
    variable: str | None, actors: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where Slurm does not confine jobs, it took the cores of everyone else's on a shared node."""
    pretend(monkeypatch, 8)
    monkeypatch.delenv("SLURM_CPUS_ON_NODE", raising=False)
    if variable is not None:
        monkeypatch.setenv("SLURM_CPUS_ON_NODE", variable)
    node = Given({"task": 1})
    assert join.tasks(node) == range(actors, 2 * actors)
    assert join.tasks(node.replace(actors_per_node=12)) == range(12, 24)
