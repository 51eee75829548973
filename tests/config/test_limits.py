"""Flags that would do something else than they say are refused before anything starts."""

from __future__ import annotations

import pytest

from impala_tf import config as configs
from impala_tf.config import ConfigError, EnvironmentConfig, Given, command_line
from impala_tf.environments import suites


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--logdir="], "--logdir=: is empty; name a folder, or leave the flag out"),
        (["--workers_csv_path="], "--workers_csv_path=: is empty; name a file, or leave the flag"),
        (["--logdir=~/runs/a"], "--logdir=~/runs/a: shells leave ~ as it is there; write --logdir"),
        (
            ["--engine=ssh", "--workers_csv_path=w.csv", "--logdir=~/a"],
            "--logdir=~/a: shells leave",
        ),
        (["--logdir=runs/a,b"], "--logdir=runs/a,b: a comma separates the folders of --mode="),
        (["--logdir=s3://bucket/a"], "--logdir=s3://bucket/a: must be a folder; --mirror=URL"),
        (
            ["--mode=test", "--logdir=a", "--dry_run"],
            "--dry_run: only training has a plan to print",
        ),
        (
            ["--job_name=learner", "--learner_hosts=127.0.0.1:1", "--dry_run"],
            "--dry_run: only training has a plan to print, not --job_name=learner; leave it out",
        ),
        (
            ["--learner_hosts=a:1,b:1"],
            "--learner_hosts: is for a process started by hand; give its --job_name, or leave it",
        ),
        (["--actor_hosts=a,b"], "--actor_hosts: is for a process started by hand; give its"),
        (["--task=3"], "--task: is for a process started by hand; give its --job_name, or leave"),
    ],
)
def test_what_would_do_something_else_is_refused(words: list[str], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        command_line.parse(words, lambda given: {})
    assert any(line.startswith(problem) for line in caught.value.problems), caught.value.problems


@pytest.mark.parametrize("algorithm", ["appo", "ppo", "a3c", "dqn"])
@pytest.mark.parametrize(
    "flag", ["--num_actors=1e8", "--envs_per_actor=1e11", "--unroll_length=1e11"]
)
def test_what_no_memory_holds_is_refused(run_here, tmp_path, flag: str, algorithm: str) -> None:
    """It would start processes until the machine hangs, or end in a MemoryError."""
    run, replay = tmp_path / "run", "--replay_capacity=1e13"
    more = (f"--algorithm={algorithm}", *[replay] * (algorithm == "dqn"))
    code, out, err = run_here("--level_name=CartPole-v1", f"--logdir={run}", flag, *more)
    assert (code, out) == (2, "")
    name, _, value = flag.partition("=")
    assert err.startswith(f"run_experiment.py: {name}={float(value):.0f}: "), err
    assert "GiB of memory or more, but this machine or container has " in err
    assert len(err.splitlines()) == 1
    assert not run.exists()


def test_only_what_this_machine_has_to_hold_counts() -> None:
    """A learner of a cluster has its batches, and its actors are elsewhere."""
    spec = suites.spec(EnvironmentConfig(level_name="CartPole-v1"))
    learner = {"job_name": "learner", "num_actors": 10**8, "envs_per_actor": 10**8}
    config = configs.resolve(Given({**learner, "batch_size": 16}), spec.kind)
    assert configs.check_fits(config, spec) == ""
    with pytest.raises(ConfigError, match="^--batch_size=100000000000: a batch of 100,000,000,000"):
        configs.check_fits(configs.replace(config, batch_size=10**11), spec)
