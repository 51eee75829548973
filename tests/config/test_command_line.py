"""Command lines -> flags: what each one gives, or the flag that its one line names."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from impala_tf import config as configs
from impala_tf.config import FLAGS, ConfigError, Given, command_line
from impala_tf.config.addresses import valid_host_port
from impala_tf.config.other_names import OTHER_NAMES

HOSTS = "--learner_hosts=a:1,b:2"
# A command line, and the flags that it gives.
ACCEPTED: list[tuple[str, dict[str, Any]]] = [
    ("--seed=7", {"seed": 7}),
    ("--seed=1 --seed 2", {"seed": 2}),
    ("--batch-size 4", {"batch_size": 4}),
    ("--learning_rate=1e-3", {"learning_rate": 0.001}),
    ("--total_environment_frames=2.5E+7", {"total_environment_frames": 25_000_000}),
    ("--video_every=2_000_000 --seed=0e0", {"video_every": 2_000_000, "seed": 0}),
    ("--no-terminal-on-life-loss --full_action_space",
     {"terminal_on_life_loss": False, "full_action_space": True}),
    ("--agent_name=auto --batch_size=None --algorithm auto",
     {"agent_name": None, "batch_size": None, "algorithm": None}),
    (f"--job_name=actor --task 3 {HOSTS}",
     {"job_name": "actor", "task": 3, "learner_hosts": "a:1,b:2"}),
    ("--workers_csv_path=w --env=A=1 --env B=2,3 --secret=C",
     {"workers_csv_path": "w", "env": ("A=1", "B=2,3"), "secret": ("C",)}),
    ("--mode=test runs/a=b --video", {"mode": "test", "logdir": "runs/a=b", "video": True}),
    ("--mode=report --logdir=a --logdir b,c", {"mode": "report", "logdir": "a,b,c"}),
    ('--level_kwargs={"b":1,"a":2}', {"level_kwargs": '{"a": 2, "b": 1}'}),
]  # fmt: skip
# A command line, and how its only line begins.
REFUSED = [
    ("--level_nmae=Pong", "--level_nmae: no such flag; did you mean --level_name?"),
    ("--xyzzy=1", "--xyzzy: no such flag (see --help_all)"),
    ("-seed=1", "-seed: no such flag; did you mean --seed?"),
    ("train", "train: no such flag; did you mean impala train?"),
    ("pong", "pong: no such flag; flags begin with --: --level_name=pong"),
    ("--lr=1", "--lr: no such flag; did you mean --learning_rate?"),
    ("--video=yes", "--video: takes no value; give --video or --no_video"),
    ("--batch_size --seed=1", "--batch_size: "),
    ("--seed=auto", "--seed=auto: must be a whole number"),
    ("--total_environment_frames=5M", "--total_environment_frames=5M: must be a whole number"),
    ("--learning_rate=nan", "--learning_rate=nan: must be a number"),
    ("--mode=play", "--mode=play: must be one of train, test, report, "),
    ("--batch_size=0", "--batch_size=0: must be greater than 0"),
    ("--entropy_cost -0.5", "--entropy_cost=-0.5: must be 0 or more"),
    ("--callbacks=Watch", "--callbacks=Watch: 'Watch' is not module:Class"),
    ("--level_kwargs={a", "--level_kwargs={a: is not JSON"),
    ("--video", "--video: films a trained agent; give impala test --logdir=DIR --video"),
    ("--mode=report", "impala report: needs --logdir"),
    ("--logdir=", "--logdir=: is empty"),
    ("--logdir=~/a", "--logdir=~/a: shells leave ~ as it is there; write --logdir"),
    ("--job_name=actor", "--job_name=actor: needs --learner_hosts"),
    ("--learner_hosts=a:1,b", "--learner_hosts: 'b' is not host:port"),
    (HOSTS, "--learner_hosts: is for a process started by hand"),
    (f"--job_name=learner {HOSTS} --task=2", "--task=2: --learner_hosts names 2"),
    (f"--job_name=learner {HOSTS} --algorithm=ppo", "--job_name=learner: actors wait"),
    (f"--job_name=learner {HOSTS} --algorithm=tests.helpers.own_algorithm:WAITS",
     "--job_name=learner: actors wait"),
    ("--workers_csv_path=w --env=Pong", "--env=Pong: must be NAME=VALUE (a level is --level_name"),
    ("--workers_csv_path=w --secret=A=canary", "--secret=A: must be NAME, a variable of this"),
    ("--config=nowhere.yaml", "--config=nowhere.yaml: cannot read it: "),
]  # fmt: skip


def test_a_command_line_gives_flags() -> None:
    for typed, flags in ACCEPTED:
        assert command_line.parse(typed.split(), environment={}).flags == flags, typed


def problems_of(*words: str, **environment: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        command_line.parse(words, environment=environment)
    return list(caught.value.problems)


def test_what_is_wrong_is_one_line() -> None:
    """A typo would train for hours with a default. No traceback, no box with the usage."""
    for typed, line in REFUSED:
        (problem,) = problems_of(*typed.split())
        assert problem.startswith(line), typed
        assert "\n" not in problem and "canary" not in problem, typed


def test_the_name_of_a_flag_in_another_library_names_ours() -> None:
    for name, ours in OTHER_NAMES.items():
        (problem,) = problems_of(f"--{name.replace('_', '-')}=1")
        assert f"--{ours}" in problem, name
        assert ours.partition("=")[0] in FLAGS, name


def test_all_problems_are_reported_at_once() -> None:
    """Users should not need one attempt per problem."""
    for typed in ("--lr=1 --batch_size=x", "--batch_size=0 --decay=2 --agent_name=X"):
        named = [re.split("[=:]", line)[0] for line in problems_of(*typed.split())]
        assert named == [word.split("=")[0] for word in typed.split()]


def test_a_number_outside_its_range_is_named() -> None:
    """It is found before anything starts, and not as NaN or a crash hours later."""
    outside = {"greater than 0": (0, -1), "0 or more": (-1, -0.01), "between 0 and 1": (-1, 1.01)}
    numbers = [flag for flag in FLAGS.values() if flag.kind in (int, float)]
    assert [flag.name for flag in numbers if not flag.range] == ["stop_at_return"]
    for flag in numbers:
        for value in outside[flag.range.wanted] if flag.range else ():
            (line,) = configs.problems(Given({flag.name: value}))
            assert line.startswith(f"--{flag.name}={value}: must be ")


CLUSTER = {"learner": ["10.0.0.1:8001", "[::1]:8002"], "actor": ["a", "b:1", "c"]}
ROLE = {"learner_hosts": "10.0.0.1:8001,[::1]:8002", "actor_hosts": "a,b:1,c"}


def described(job: str = "actor", index: int = 2, **cluster: Any) -> str:
    return json.dumps({"cluster": {**CLUSTER, **cluster}, "task": {"type": job, "index": index}})


@pytest.mark.parametrize(
    ("variable", "typed", "flags"),
    [
        (described(), "--seed=3", {**ROLE, "job_name": "actor", "task": 2, "seed": 3}),
        (described("learner", 1), "", {**ROLE, "job_name": "learner", "task": 1}),
        (described(), "--task 0 --learner_hosts=h:1",
         {**ROLE, "job_name": "actor", "task": 0, "learner_hosts": "h:1"}),
        # Of another program, or of a command that says itself what to do:
        ('{"cluster": {"chief": ["j:1"]}, "task": {"type": "chief", "index": 0}}', "", {}),
        ("{", "--job_name=learner --learner_hosts=h:1",
         {"job_name": "learner", "learner_hosts": "h:1"}),
        ("{", "--workers_csv_path=w", {"workers_csv_path": "w"}),
        ("{", "--mode=test run", {"mode": "test", "logdir": "run"}),
    ],
)  # fmt: skip
def test_a_scheduler_gives_the_role_in_a_variable(
    variable: str, typed: str, flags: dict[str, Any]
) -> None:
    assert command_line.parse(typed.split(), environment={"TF_CONFIG": variable}).flags == flags


def test_a_role_that_nobody_can_have_is_refused() -> None:
    for variable in ("{", described("worker"), described(learner="h:1"), described(actor=["a,b"])):
        assert problems_of(TF_CONFIG=variable)[0].startswith("TF_CONFIG: must be "), variable
    (problem,) = problems_of(TF_CONFIG=described(index=3))
    assert problem.startswith("--task=3: --actor_hosts names 3")


VALUES: dict[Any, tuple[Any, ...]] = {
    bool: (True, False),
    int: (1, 65_535),
    float: (1e-300, 0.1, 1.0),
    str: ("a=b", "-x", "two words", "'\"\\$\t", "--seed=3", "a:1,[::1]:2", "ü"),
}


def test_any_value_of_a_flag_survives_the_command_line() -> None:
    """A run passes its config to every process as flags."""
    cases = [{"workers_csv_path": "w", "env": ("A=b=c d", "B="), "secret": ("C", "D")}]
    for name, flag in FLAGS.items():
        if name not in ("config", "join"):  # which become other flags
            cases += [{name: value} for value in flag.choices or VALUES.get(flag.kind, ())]
    survived: set[str] = set()
    for given in map(Given, cases):
        if not configs.problems(given):
            found = command_line.parse(configs.to_flags(given), environment={})
            assert found.everything() == given.everything(), given.flags
            survived |= given.flags.keys()
    assert len(survived) > 90 and "secret" in survived


def test_a_host_and_port_are_checked() -> None:
    """They are used on the command lines of other machines."""
    valid = ["localhost:1", "10.0.0.1:65535", "my-host_1.example:8000", "[::1]:8000",
             "[fe80::1.2.3.4]:8000", "host.example.:8000"]  # fmt: skip
    wrong = ["host", "host:", ":8000", "host:0", "host:65536", "host:x", "::1:8000", "[::1]",
             "user@host:22", "host:80\n", "a..b:1", f"{'a' * 64}:1"]  # fmt: skip
    assert [text for text in (*valid, *wrong) if valid_host_port(text)] == valid
