"""--engine=ray without a cluster: what would be placed, and what is refused before anything is."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from impala_tf.cluster.engines import ray
from impala_tf.config import Given
from tests.helpers.runs import PROJECT

FLAGS = {
    "engine": "ray", "num_learners": 2, "num_actors": 3, "ray_learner_resources": "CPU=4,GPU=1",
    "logdir": "/shared/pong", "seed": 3, "fresh": True, "algorithm": "ppo",
    "envs_per_actor": 4,
}  # fmt: skip
TABLE = """\
process    takes        room                command
learner-0  CPU=4,GPU=1  first, together     python run_experiment.py --job_name=learner --task=0
learner-1  CPU=4,GPU=1  first, together     python run_experiment.py --job_name=learner --task=1
actor-0    CPU=1        first, together     python run_experiment.py --job_name=actor --task=0
actor-1    CPU=1        when a node has it  python run_experiment.py --job_name=actor --task=1
actor-2    CPU=1        when a node has it  python run_experiment.py --job_name=actor --task=2
"""


def test_the_table_says_what_waits_for_what() -> None:
    """ppo: a batch is an unroll of each environment of the learner with the fewest actors."""
    text = ray.render(Given(FLAGS))
    assert text.startswith(TABLE)
    rest = text.removeprefix(TABLE).split()
    for flag in ("--logdir=/shared/pong", "--seed=3", "--num_actors=3", "--batch_size=4"):
        assert flag in rest
    for name in ("engine", "ray_", "fresh", "learner_hosts="):
        assert f"--{name}" not in " ".join(rest[6:])


def test_a_dry_run_needs_no_ray(tmp_path: Path) -> None:
    """It must not import it, either: that takes a second."""
    code = (
        "import sys; sys.modules['ray'] = None\n"
        "sys.argv = ['run.py', '--engine=ray', '--dry_run', '--level_name=CartPole-v1']\n"
        "from impala_tf.main import main; sys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, timeout=240
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("process    takes  room             command\nlearner-0 ")


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
