"""Flags that would do something else than they say are refused before anything starts."""

from __future__ import annotations

import pytest

from impala_tf.config import ConfigError, command_line


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
        (["--logdir=runs/a,b"], "--logdir=runs/a,b: --mode=report reads a comma as two folders"),
        (["--logdir=s3://bucket/a"], "--logdir=s3://bucket/a: must be a folder; --mirror=URL"),
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
