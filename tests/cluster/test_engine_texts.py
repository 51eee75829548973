"""What engines print and refuse before anything runs, and which engine has a run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from impala_tf.cluster import cluster_main as launcher
from impala_tf.cluster.engines import ray
from impala_tf.cluster.record import Launch, write
from impala_tf.config import FLAGS, Given, problems

RAY_NODES = """\
node            takes        runs
node-learner-0  CPU=4,GPU=1  learner-0
node-learner-1  CPU=4,GPU=1  learner-1
node-actor-0    CPU=2        2 actor(s)
node-actor-1    CPU=2        2 actor(s)
node-actor-2    CPU=1        1 actor(s)
"""


@pytest.mark.parametrize("name", [each for each in FLAGS["engine"].choices if each])
def test_every_engine_can_be_chosen_and_prints_without_touching_anything(
    name: str,
    tmp_path: Path,
    run_here: Callable[..., tuple[int, str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # it cannot be imported
    logdir, csv = tmp_path / "run", tmp_path / "w.csv"
    csv.write_text("job,ip,tf_port\nlearner,10.9.9.1,8001\nactor,10.9.9.2,\n")
    flags = [f"--engine={name}", "--level_name=CartPole-v1", f"--logdir={logdir}", "--dry_run"]
    flags += [f"--workers_csv_path={csv}"] if name == "ssh" else []
    status, out, err = run_here(*flags)
    assert (status, err) == (0, "")
    assert ("learner-0" if name == "ssh" else "--level_name=CartPole-v1") in out
    assert not logdir.exists()


@pytest.mark.parametrize(
    ("name", "said"),
    [("slurm", "--engine=slurm: no sbatch here; "), ("ray", "--engine=ray: needs the extra ray: ")],
)
def test_an_engine_that_is_not_here_is_named_and_nothing_is_written(
    name: str,
    said: str,
    tmp_path: Path,
    run_here: Callable[..., tuple[int, str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    logdir = tmp_path / "run"
    flags = (f"--engine={name}", "--level_name=CartPole-v1", f"--logdir={logdir}")
    status, out, err = run_here(*flags)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert said in err
    assert not logdir.exists()


def test_ray_says_what_each_node_would_run() -> None:
    """ppo: a batch is an unroll of each environment of the learner with the fewest actors."""
    given = Given({
        "engine": "ray", "num_learners": 2, "num_actors": 5, "actors_per_node": 2,
        "algorithm": "ppo", "ray_learner_resources": "CPU=4,GPU=1", "logdir": "/shared/pong",
        "seed": 3, "fresh": True, "envs_per_actor": 4,
    })  # fmt: skip
    text = ray.render(given)
    assert text.startswith(RAY_NODES)
    flags = text.removeprefix(RAY_NODES).split()
    for flag in ("--logdir=/shared/pong", "--seed=3", "--num_actors=5", "--batch_size=8"):
        assert flag in flags
    assert not [f for f in flags if f.startswith(("--engine", "--ray_", "--fresh", "--actors_"))]


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["attach", "x"], ""), (["fetch"], ""), (["add"], ""),
        (["status", "--follow"], " --follow"), (["logs", "learner-0", "x"], " host"),
        (["stop", "--timeout_s=0"], " --timeout_s"),
    ],
)  # fmt: skip
def test_what_only_ssh_has_is_refused_for_others(
    words: list[str], option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write("7" * 16, Launch("slurm", str(tmp_path), 1.0, {"job": "7"}))
    assert launcher.main([words[0], f"--logdir={tmp_path}", *words[1:]]) == 2
    assert capsys.readouterr().err == (
        f"{words[0]}{option}: only for runs over SSH; {tmp_path} has a run of --engine=slurm\n"
    )


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ({"ray_learner_resources": "CPU=2"}, "--ray_learner_resources: only with --engine=ray"),
        ({"engine": "ray", "slurm_actors": 2}, "--slurm_actors: only with --engine=slurm"),
        ({"num_learners": 2}, "--num_learners=2: only with --join, --engine=slurm or --engine=ray"),
        ({"engine": "slurm", "num_learners": 2, "slurm_actors": 0}, "--slurm_actors=0: several"),
        (
            {"engine": "ray", "ray_learner_resources": "CPU=1,GPU=x"},
            "--ray_learner_resources=CPU=1,",
        ),
        ({"engine": "ray", "end_command": "poweroff"}, "--end_command: "),
        ({"engine": "slurm", "mode": "test"}, "--engine=slurm: trains"),
        ({"engine": "ssh"}, "--engine=ssh: name the machines with --workers_csv_path=FILE"),
    ],
)
def test_flags_that_do_not_fit_are_named(flags: dict[str, object], line: str) -> None:
    (found,) = problems(Given(flags))
    assert found.startswith(line)
