"""The flags that engines refuse, and which engine has a run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from impala_tf.cluster import cluster_main as launcher
from impala_tf.cluster.engines import ray
from impala_tf.cluster.inventory import Row
from impala_tf.cluster.plan import make_plan
from impala_tf.cluster.record import Launch, write
from impala_tf.config import FLAGS, Given, problems


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
    ("words", "option"),
    [
        *((words, "") for words in (["attach", "x"], ["fetch"],
           ["restart", "x"], ["add"], ["revoke", "x"], ["watch"])),
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


def test_every_way_of_starting_a_run_gives_it_the_same_batch(tmp_path: Path) -> None:
    """An unroll of every environment, of the learner that has the fewest actors."""
    run = Given({"algorithm": "ppo", "envs_per_actor": 8, "logdir": str(tmp_path)})
    rows = [
        *(Row(2, "learner", f"10.9.9.{number}", 8001) for number in (1, 2)),
        *(Row(9, "actor", "10.9.9.3") for _ in range(5)),
    ]
    plan = make_plan(run, rows, "p")
    for text in (
        "\n".join(plan.processes[0].arguments),
        ray.render(run.replace(num_learners=2, num_actors=5)),
    ):
        assert "--num_actors=5" in text and "--batch_size=16" in text


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ({"ray_learner_resources": "CPU=2"}, "--ray_learner_resources: only with --engine=ray"),
        ({"engine": "ray", "slurm_actors": 2}, "--slurm_actors: only with --engine=slurm"),
        ({"num_learners": 2}, "--num_learners=2: only with --join, --engine=slurm or --engine=ray"),
        ({"engine": "slurm", "join": True}, "--join: --engine=slurm gives"),
        ({"engine": "slurm", "num_learners": 2, "slurm_actors": 0}, "--slurm_actors=0: several"),
        (
            {"engine": "ray", "ray_learner_resources": "CPU=1,GPU=x"},
            "--ray_learner_resources=CPU=1,",
        ),
        ({"engine": "ray", "ray_learner_resources": "a"}, "--ray_learner_resources=a: must be"),
        ({"engine": "ray", "end_command": "poweroff"}, "--end_command: "),
        ({"engine": "slurm", "mode": "test"}, "--engine=slurm: trains"),
        ({"engine": "ssh"}, "--engine=ssh: name the machines with --workers_csv_path=FILE"),
        (
            {"engine": "ssh", "workers_csv_path": "w.csv", "slurm_actors": 2},
            "--slurm_actors: only with --engine=slurm",
        ),
    ],
)
def test_flags_that_do_not_fit_are_named(flags: dict[str, object], line: str) -> None:
    (found,) = problems(Given(flags))
    assert found.startswith(line)
