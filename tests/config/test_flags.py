"""Flags: their ranges, their contradictions, and what the level decides."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest

from impala_tf import config as configs
from impala_tf.config import (
    AGENTS,
    ALGORITHMS,
    Config,
    ConfigError,
    EnvironmentConfig,
    Given,
    command_line,
    to_dict,
    words,
)
from impala_tf.config.addresses import valid_host_port
from impala_tf.config.presets import PRESETS
from impala_tf.types import Kind
from tests.helpers.cores import pretend
from tests.helpers.flags import DEFAULTS

KINDS: list[Kind] = ["atari", "procgen", "image", "vector"]

# The flags that the project promises by name.
CONTRACT = (
    "logdir", "mode", "test_num_episodes", "job_name", "task", "learner_hosts", "actor_hosts",
    "total_environment_frames", "num_actors", "batch_size", "unroll_length", "num_action_repeats",
    "seed", "agent_name", "entropy_cost", "baseline_cost", "discounting", "reward_clipping",
    "gradients_clipping", "level_name", "width", "height", "learning_rate", "decay", "momentum",
    "epsilon", "workers_csv_path", "tmux_sess", "envs_per_actor", "video",
)  # fmt: skip

# Values just outside each range.
OUTSIDE = {
    "greater than 0": (0, -1),
    "0 or more": (-1, -0.01),
    "between 0 and 1": (-0.01, 1.01),
}
WITHOUT_RANGE = {"stop_at_return"}
LAUNCH = {"workers_csv_path": "w.csv"}


def changed(**flags: Any) -> Given:
    return Given(flags)


def test_no_promised_flag_is_missing() -> None:
    """Command lines of the earlier projects and of users name them."""
    assert set(CONTRACT) <= set(DEFAULTS)


def test_a_protocol_sets_what_is_not_given() -> None:
    """Also for the processes that are started with these flags."""
    given = changed(protocol="sticky", noop_max=30)
    for each in (
        given,
        command_line.parse(configs.to_flags(given)),
        Given.of(configs.resolve(given, "atari")),
    ):
        assert each.environment.repeat_action_probability == 0.25
        assert each.environment.noop_max == 30
        assert not each.environment.terminal_on_life_loss
    plain = changed(protocol="sticky", repeat_action_probability=0.0)
    assert command_line.parse(configs.to_flags(plain)).environment.repeat_action_probability == 0.0


def test_no_flag_is_in_two_groups() -> None:
    """On the command line, a flag has no group, so one of the two could not be set."""
    groups = [getattr(Config(), group.name) for group in dataclasses.fields(Config)]
    names = [field.name for group in groups for field in dataclasses.fields(group)]
    assert sorted(names) == sorted(set(names))


def test_the_defaults_are_valid() -> None:
    assert configs.problems(Given()) == []
    for kind in KINDS:
        assert configs.problems(Given.of(configs.resolve(Given(), kind))) == []


def test_a_number_outside_its_range_is_named() -> None:
    """It is found before anything starts, and not as NaN or a crash hours later."""
    numbers = {name: flag for name, flag in words.flags().items() if flag.kind in (int, float)}
    assert {name for name, flag in numbers.items() if not flag.range} == WITHOUT_RANGE
    for name, flag in numbers.items():
        for value in OUTSIDE[flag.range.wanted] if flag.range else ():
            expected = [f"--{name}={value}: must be {flag.range.wanted}" if flag.range else ""]
            assert configs.problems(changed(**{name: value})) == expected


@pytest.mark.parametrize(
    "flags",
    [
        {"gradients_clipping": 0.0, "entropy_cost": 0.0, "noop_max": 0, "num_levels": 0},
        {"discounting": 1.0, "decay": 0.0, "max_restarts": 0},
    ],
)
def test_the_limits_themselves_are_valid(flags: dict[str, float]) -> None:
    assert configs.problems(changed(**flags)) == []


@pytest.mark.parametrize(
    ("flags", "start"),
    [
        ({"agent_name": "ResNet"}, "--agent_name=ResNet: no such agent; use one of"),
        ({"algorithm": "sac"}, "--algorithm=sac: no such algorithm; use one of impala, appo, ppo"),
        ({"learner_hosts": "a:1,b"}, "--learner_hosts: 'b' is not host:port"),
        ({"learner_hosts": "a:99999"}, "--learner_hosts: 'a:99999' is not host:port"),
        ({"job_name": "actor"}, "--job_name=actor: needs --learner_hosts"),
        (
            {"job_name": "learner", "learner_hosts": "a:1,b:1", "task": 2},
            "--task=2: --learner_hosts names 2",
        ),
        (
            {"job_name": "actor", "learner_hosts": "a:1", "actor_hosts": "c", "task": 1},
            "--task=1: --actor_hosts names 1",
        ),
        (
            {"job_name": "actor", "learner_hosts": "a:1", "workers_csv_path": "w.csv"},
            "--workers_csv_path: ",
        ),
        (
            {"job_name": "learner", "learner_hosts": "a:1", "algorithm": "ppo"},
            "--job_name=learner: actors wait for updates, so this needs --actor_hosts, or a",
        ),
        (
            {"job_name": "learner", "learner_hosts": "a:1", "synchronization": "trajectory"},
            "--job_name=learner: actors wait for updates",
        ),
        ({"synchronization": "step"}, "--synchronization=step: needs --inference=learner"),
        ({"env": ("A=1",)}, "--env: only with --workers_csv_path"),
        ({"secret": ("A",)}, "--secret: only with --workers_csv_path"),
        ({"env": ("Pong",), **LAUNCH}, "--env=Pong: must be NAME=VALUE (a level is --level_name)"),
        ({"env": ("1A=canary",), **LAUNCH}, "--env=1A: must be NAME=VALUE"),
        ({"secret": ("A=canary",), **LAUNCH}, "--secret=A: must be NAME, a variable of"),
        ({"secret": ("a b",), **LAUNCH}, "--secret=a b: must be NAME"),
        ({"tmux_sess": "a.b"}, "--tmux_sess='a.b': must be up to 64 letters, digits, _ and -"),
        ({"tmux_sess": "-a"}, "--tmux_sess='-a': "),
        ({"tmux_sess": ""}, "--tmux_sess='': "),
    ],
)
def test_a_contradiction_is_named(flags: dict[str, Any], start: str) -> None:
    (line,) = configs.problems(changed(**flags))
    assert line.startswith(start)
    assert "\n" not in line
    assert "canary" not in line


def test_all_problems_are_reported_at_once() -> None:
    """Users should not need one attempt per problem."""
    found = configs.problems(changed(batch_size=0, decay=2.0, agent_name="X", tmux_sess=" "))
    assert [line.partition("=")[0] for line in found] == [
        "--batch_size",
        "--decay",
        "--agent_name",
        "--tmux_sess",
    ]


def test_a_config_error_has_one_line_per_problem() -> None:
    assert ConfigError("one").problems == ["one"]
    assert str(ConfigError(["one", "two"])) == "one\ntwo"


@pytest.mark.parametrize("name", list(AGENTS))
def test_every_agent_in_the_table_is_valid(name: str) -> None:
    assert configs.problems(changed(agent_name=name)) == []


def test_replace_changes_the_named_flags_and_refuses_unknown_ones() -> None:
    config = configs.replace(Config(), seed=5, decay=0.5)
    assert (config.run.seed, config.optimizer.decay) == (5, 0.5)
    assert configs.replace(config, seed=1, decay=DEFAULTS["decay"]) == Config()
    with pytest.raises(TypeError, match="no such flags: sede"):
        configs.replace(config, sede=5)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ()),
        ("  ", ()),
        ("a:1", ("a:1",)),
        ("a:1, b:2 ,[::1]:3", ("a:1", "b:2", "[::1]:3")),
    ],
)
def test_hosts_are_comma_separated(text: str, expected: tuple[str, ...]) -> None:
    assert configs.split(text) == expected


def test_a_host_and_port_are_checked() -> None:
    """They are used on the command lines of other machines."""
    valid = ["localhost:1", "10.0.0.1:65535", "my-host_1.example:8000", "[::1]:8000",
             "[fe80::1.2.3.4]:8000", "host.example.:8000"]  # fmt: skip
    wrong = ["host", "host:", ":8000", "host:0", "host:65536", "host:x", "::1:8000", "[::1]",
             "user@host:22", "host:80\n", "a..b:1", f"{'a' * 64}:1"]  # fmt: skip
    assert [text for text in (*valid, *wrong) if valid_host_port(text)] == valid


@pytest.mark.parametrize(
    ("level_name", "folder"),
    [
        ("ALE/Pong-v5", "ALE-Pong-v5"),
        ("tests.helpers.worlds:Scripted-v0", "tests.helpers.worlds-Scripted-v0"),
        ("../../etc", "..-..-etc"),
    ],
)
def test_a_level_gives_a_folder_a_safe_name(level_name: str, folder: str) -> None:
    assert configs.slug(level_name) == folder


def test_given_flags_are_told_apart_from_those_that_were_not_given() -> None:
    """Also where the given value is the default: a run's own flags must not replace it."""
    given = Given({"seed": 1, "noop_max": 7}).replace(width=42).without("noop_max", "height")
    assert given.flags == {"seed": 1, "width": 42}
    assert "seed" in given and "noop_max" not in given
    assert (given["noop_max"], given["batch_size"]) == (DEFAULTS["noop_max"], None)
    assert given.environment == EnvironmentConfig(width=42)
    with pytest.raises(TypeError, match="no such flags: sead"):
        Given({"sead": 1})


def test_everything_is_resolved() -> None:
    """Readers of a config know no flag that depends on others: each has its value."""
    for kind, name in itertools.product(KINDS, ALGORITHMS):
        flags = to_dict(configs.resolve(Given({"algorithm": name}), kind))
        derived = {*PRESETS["tuned"][kind], "logdir", "core", "num_actors", "queue_capacity"}
        assert not [flag for flag in derived if flags[flag] is None]


@pytest.mark.parametrize(
    ("flags", "threads"),
    [
        ({"agent_name": "ShallowConvNetAgent"}, 4),
        ({"agent_name": "SeparateMLPAgent"}, 4),
        ({"agent_name": "NatureAgent"}, 8),
        ({"agent_name": "ShallowConvNetLSTMAgent"}, 8),
        ({"agent_name": "ShallowConvNetAgent", "core": "lstm"}, 8),
        ({"agent_name": "ShallowConvNetAgent", "width_scale": 4}, 8),
        ({"agent_name": "ShallowConvNetAgent", "inference": "learner"}, 8),
        ({"agent_name": "ShallowConvNetAgent", "learner_hosts": "10.0.0.1:8001"}, 8),
        ({"agent_name": "ShallowConvNetAgent", "learner_hosts": "h:1,[::1]:1", "task": 1}, 4),
        ({"agent_name": "NatureAgent", "learner_threads": 3}, 3),
        ({"agent_name": "ShallowConvNetAgent", "algorithm": "ppo"}, 8),
        ({"agent_name": "ShallowConvNetAgent", "algorithm": "dqn"}, 8),
        ({"agent_name": "ShallowConvNetAgent", "synchronization": "trajectory"}, 8),
        ({"agent_name": "ShallowConvNetAgent", "num_actors": 2}, 8),
    ],
)  # fmt: skip
def test_a_learner_leaves_cores_to_the_actors_beside_it_if_that_is_faster(
    monkeypatch: pytest.MonkeyPatch, flags: dict[str, Any], threads: int
) -> None:
    """Its threads would wait for each other while actors have the cores; see docs/speed.md."""
    pretend(monkeypatch, 8)
    local = {"job_name": "learner", "learner_hosts": "127.0.0.1:8001", "actor_hosts": "a"}
    config = configs.resolve(changed(**{**local, **flags}), "atari")
    assert configs.learner_threads(config) == threads
