"""How many actors a node of --join starts."""

from __future__ import annotations

import pytest

from impala_tf.cluster import join
from impala_tf.config import Given
from tests.helpers.cores import pretend


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
