"""Flags that cannot be used are named in one line each, before anything starts."""

from __future__ import annotations

import pytest

from impala_tf import config as configs
from impala_tf.config import ConfigError, Given, command_line, words

# Values just outside each range.
OUTSIDE = {
    "greater than 0": (0, -1),
    "0 or more": (-1, -0.01),
    "between 0 and 1": (-0.01, 1.01),
}
WITHOUT_RANGE = {"stop_at_return"}

# A command line, and how the one line that it gives begins.
WRONG = [
    ("--level_nmae=Pong", "--level_nmae: no such flag; did you mean --level_name?"),
    ("--xyzzy=1", "--xyzzy: no such flag (see --help_all)"),
    ("-seed=1", "-seed: no such flag; did you mean --seed?"),
    ("train", "train: no such flag; did you mean --mode=train?"),
    ("pong", "pong: no such flag; flags begin with --: --level_name=pong"),
    ("--lr=1", "--lr: no such flag; did you mean --learning_rate?"),
    ("--video=yes", "--video=yes: takes no value; give --video or --no_video"),
    ("--batch_size", "--batch_size: needs a value"),
    ("--batch_size=many", "--batch_size=many: must be a whole number"),
    ("--seed=1e999999999", "--seed=1e999999999: must be a whole number"),
    ("--total_environment_frames=5M", "--total_environment_frames=5M: must be a whole number"),
    ("--learning_rate=nan", "--learning_rate=nan: must be a number"),
    ("--mode=play", "--mode=play: must be one of train, test, report, "),
    (f"--reward_clipping={'x' * 300}", f"--reward_clipping={'x' * 300}: must be one of abs_one"),
    ("--batch_size=0", "--batch_size=0: must be greater than 0"),
    ("--agent_name=Res", "--agent_name=Res: no such agent; use one of ImpoolaAgent, "),
    ("--algorithm=sac", "--algorithm=sac: no such algorithm; use one of impala, appo, ppo"),
    ("--synchronization=step", "--synchronization=step: needs --inference=learner"),
    ("--info_metrics=a,b?", "--info_metrics=a,b?: must be names"),
    ("--video", "--video: films a trained agent; give --mode=test --logdir=DIR --video"),
    ("--mode=report", "--mode=report: needs --logdir"),
    ("--logdir=", "--logdir=: is empty; name a folder, or leave the flag out"),
    ("--logdir=~/a", "--logdir=~/a: shells leave ~ as it is there; write --logdir"),
    ("--logdir=s3://bucket/a", "--logdir=s3://bucket/a: must be a folder; --mirror=URL"),
    ("--workers_csv_path=", "--workers_csv_path=: is empty; name a file, or leave the flag"),
    ("--tmux_sess=a.b", "--tmux_sess='a.b': must be up to 64 letters, digits, _ and -"),
    ("--job_name=actor", "--job_name=actor: needs --learner_hosts"),
    ("--job_name=actor --learner_hosts=a:1 --workers_csv_path=w", "--workers_csv_path: starts"),
    ("--learner_hosts=a:1,b", "--learner_hosts: 'b' is not host:port"),
    ("--learner_hosts=a:1,b:1", "--learner_hosts: is for a process started by hand; give its"),
    ("--actor_hosts=a,b", "--actor_hosts: is for a process started by hand; give its"),
    ("--task=3", "--task: is for a process started by hand; give its --job_name, or leave"),
    ("--job_name=learner --learner_hosts=a:1,b:1 --task=2", "--task=2: --learner_hosts names 2"),
    ("--job_name=actor --learner_hosts=a:1 --actor_hosts=c --task=1", "--task=1: --actor_hosts na"),
    ("--job_name=learner --learner_hosts=a:1 --algorithm=ppo", "--job_name=learner: actors wait"),
    ("--env=A=1", "--env: only with --workers_csv_path"),
    ("--workers_csv_path=w --env=Pong", "--env=Pong: must be NAME=VALUE (a level is --level_name"),
    ("--workers_csv_path=w --secret=A=canary", "--secret=A: must be NAME, a variable of this"),
]


@pytest.mark.parametrize(("typed", "line"), WRONG, ids=lambda text: text[:40])
def test_what_is_wrong_is_one_line(typed: str, line: str) -> None:
    """A typo would train for hours with a default. No traceback, no box with the usage."""
    with pytest.raises(ConfigError) as caught:
        command_line.parse(typed.split())
    (problem,) = caught.value.problems
    assert problem.startswith(line), problem
    assert "\n" not in problem and "canary" not in problem


def test_a_number_outside_its_range_is_named() -> None:
    """It is found before anything starts, and not as NaN or a crash hours later."""
    numbers = {name: flag for name, flag in words.flags().items() if flag.kind in (int, float)}
    assert {name for name, flag in numbers.items() if not flag.range} == WITHOUT_RANGE
    for name, flag in numbers.items():
        for value in OUTSIDE[flag.range.wanted] if flag.range else ():
            expected = f"--{name}={value}: must be {flag.range.wanted}" if flag.range else ""
            assert configs.problems(Given({name: value})) == [expected]


def test_the_limits_themselves_are_valid() -> None:
    none = dict.fromkeys(("gradients_clipping", "entropy_cost", "decay"), 0.0)
    assert configs.problems(Given({**none, "noop_max": 0, "discounting": 1.0})) == []


def test_all_problems_are_reported_at_once() -> None:
    """Users should not need one attempt per problem."""
    for typed, flags in (
        ("--lr=1 --batch_size=x", ["--lr", "--batch_size"]),
        ("--batch_size=0 --decay=2 --agent_name=X", ["--batch_size", "--decay", "--agent_name"]),
    ):
        with pytest.raises(ConfigError) as caught:
            command_line.parse(typed.split())
        assert [line.split("=")[0].split(":")[0] for line in caught.value.problems] == flags
    assert str(caught.value) == "\n".join(caught.value.problems)
