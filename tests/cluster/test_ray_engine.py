"""--engine=ray without a cluster: what would be placed, and what is refused before anything is."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from impala_tf.cluster.engines import ray
from impala_tf.config import Given

FLAGS = {
    "engine": "ray", "num_learners": 2, "num_actors": 5, "actors_per_node": 2, "algorithm": "ppo",
    "ray_learner_resources": "CPU=4,GPU=1", "logdir": "/shared/pong", "seed": 3, "fresh": True,
    "envs_per_actor": 4,
}  # fmt: skip
TABLE = """\
node            takes        runs
node-learner-0  CPU=4,GPU=1  learner-0
node-learner-1  CPU=4,GPU=1  learner-1
node-actor-0    CPU=2        2 actor(s)
node-actor-1    CPU=2        2 actor(s)
node-actor-2    CPU=1        1 actor(s)
"""


def test_the_table_says_what_each_node_runs() -> None:
    """ppo: a batch is an unroll of each environment of the learner with the fewest actors."""
    text = ray.render(Given(FLAGS))
    assert text.startswith(TABLE)
    flags = text.removeprefix(TABLE).split()
    for flag in ("--logdir=/shared/pong", "--seed=3", "--num_actors=5", "--batch_size=8"):
        assert flag in flags
    assert not [f for f in flags if f.startswith(("--engine", "--ray_", "--fresh", "--actors_"))]


def test_without_ray_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, run_here: Callable[..., tuple[int, str, str]]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    logdir = tmp_path / "run"
    flags = ("--engine=ray", "--level_name=CartPole-v1", f"--logdir={logdir}")
    status, out, err = run_here(*flags)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "--engine=ray: needs the extra ray: " in err
    assert err.endswith("[ray]'\n")
    assert not logdir.exists()
