"""Nodes of --join: how many actors they start, and that each is one process."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from impala_tf.cluster import join
from impala_tf.cluster.node import state as files
from impala_tf.config import Config, ConfigError, Given
from tests.helpers.cores import pretend


def test_a_second_process_that_is_the_same_node_says_so_and_changes_no_orders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It waited for ever without a word, and the first got its orders."""
    monkeypatch.setattr(join, "LOCK_WAIT_S", 0.6)
    path = files.lock_path(tmp_path, "node-learner-0")
    path.parent.mkdir()
    node = {"job_name": "learner", "task": 0, "logdir": str(tmp_path)}
    refused = f"--logdir={tmp_path}: another process is node-learner-0 there; stop it"
    with path.open("w") as first, pytest.raises(ConfigError, match=refused):
        fcntl.flock(first, fcntl.LOCK_EX)
        join.run_node(Given({**node, "learner_hosts": "127.0.0.1:8001"}), Config())
    assert capsys.readouterr().err == (
        f"{path}: another process is node-learner-0; waiting until it ends\n"
    )
    assert not files.orders_path(tmp_path, "node-learner-0").exists()


@pytest.mark.parametrize(
    ("variable", "actors"),
    [("3", 3), ("16", 8), ("8(x2)", 8), (None, 8)],
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
