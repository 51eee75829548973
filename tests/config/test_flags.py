"""Flags: their ranges, their contradictions, and what the level decides."""

from __future__ import annotations

import dataclasses
import itertools
import math
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
)
from impala_tf.config.addresses import valid_host_port
from impala_tf.config.presets import PRESETS
from impala_tf.types import Kind
from tests.helpers.cores import pretend
from tests.helpers.flags import DEFAULTS, TYPES

FLOATS = [name for name, hint in TYPES.items() if hint in (float, float | None)]
NUMBERS = [*FLOATS, *(name for name, hint in TYPES.items() if hint in (int, int | None))]
KINDS: list[Kind] = ["atari", "procgen", "image", "vector"]

# The flags that the project promises by name.
CONTRACT = (
    "logdir", "mode", "test_num_episodes", "job_name", "task", "learner_hosts", "actor_hosts",
    "total_environment_frames", "num_actors", "batch_size", "unroll_length", "num_action_repeats",
    "seed", "agent_name", "entropy_cost", "baseline_cost", "discounting", "reward_clipping",
    "gradients_clipping", "level_name", "width", "height", "learning_rate", "decay", "momentum",
    "epsilon", "workers_csv_path", "tmux_sess", "envs_per_actor", "video",
)  # fmt: skip

# Values just outside the range of every flag that is a number.
ZERO, BELOW_ZERO, NO_SHARE = (0, -1), (-1,), (-0.01, 1.01)
OUT_OF_RANGE: dict[str, tuple[float, ...]] = {
    "seed": BELOW_ZERO,
    "benchmark_seconds": ZERO,
    "total_environment_frames": ZERO,
    "schedule_frames": ZERO,
    "checkpoint_interval_s": ZERO,
    "metrics_interval_s": ZERO,
    "num_action_repeats": ZERO,
    "environment_timeout_s": ZERO,
    "frame_skip": ZERO,
    "width_scale": ZERO,
    "width": ZERO,
    "height": ZERO,
    "stacked_frames": ZERO,
    "noop_max": BELOW_ZERO,
    "max_episode_frames": ZERO,
    "num_levels": BELOW_ZERO,
    "pixel_statistics_steps": BELOW_ZERO,
    "start_level": BELOW_ZERO,
    "repeat_action_probability": NO_SHARE,
    "discounting": NO_SHARE,
    "baseline_cost": (-0.01,),
    "entropy_cost": (-0.01,),
    "vtrace_lambda": NO_SHARE,
    "gae_lambda": NO_SHARE,
    "q_lambda": NO_SHARE,
    "entropy_cost_end": BELOW_ZERO,
    "surrogate_clipping": BELOW_ZERO,
    "target_update_interval": BELOW_ZERO,
    "ring_batches": ZERO,
    "minibatches": ZERO,
    "learning_rate_end": BELOW_ZERO,
    "batch_size": ZERO,
    "unroll_length": ZERO,
    "learning_rate": ZERO,
    "decay": NO_SHARE,
    "momentum": NO_SHARE,
    "epsilon": ZERO,
    "gradients_clipping": (-0.01,),
    "num_actors": ZERO,
    "envs_per_actor": ZERO,
    "learner_threads": ZERO,
    "queue_capacity": ZERO,
    "n_step": ZERO,
    "micro_batches": ZERO,
    "replay_capacity": ZERO,
    "replay_start_steps": BELOW_ZERO,
    "replay_batch_size": ZERO,
    "replay_ratio": ZERO,
    "task": BELOW_ZERO,
    "max_restarts": BELOW_ZERO,
    "max_policy_lag": ZERO,
    "parameter_lag": ZERO,
    "min_actors": ZERO,
    "min_learners": ZERO,
    "max_hours": ZERO,
    "idle_exit_minutes": ZERO,
    "rendezvous_port": (0, -1, 65_536),
    "join_port": (0, -1, 65_536),
    "join_learners": ZERO,
    "actors_per_node": ZERO,
    "slurm_learners": ZERO,
    "slurm_actors": BELOW_ZERO,
    "ray_learners": ZERO,
    "ray_actors": ZERO,
    "ray_port": (0, -1, 65_536),
    "test_num_episodes": ZERO,
    "updates_per_batch": ZERO,
    "stop_at_return": (),
    "video_every": ZERO,
    "eval_every": ZERO,
}


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


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in OUT_OF_RANGE.items() for value in values]
)
def test_a_value_out_of_range_is_named(name: str, value: float) -> None:
    """It is found before anything starts, and not as NaN or a crash hours later."""
    (line,) = configs.problems(changed(**{name: value}))
    assert line.startswith(f"--{name}={value}: must be ")


def test_every_number_has_a_range() -> None:
    """Add the range of a new flag to OUT_OF_RANGE."""
    assert set(NUMBERS) == set(OUT_OF_RANGE)


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e39])
def test_nan_and_what_is_infinite_as_float32_is_named(name: str, value: float) -> None:
    """NaN is neither below nor above a limit, so it would pass simple checks."""
    (line,) = configs.problems(changed(**{name: value}))
    problem = "must be a number" if math.isnan(value) else "give a number of at most 3.4e+38"
    assert line == f"--{name}={value}: {problem}"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("gradients_clipping", 0.0),
        ("entropy_cost", 0.0),
        ("discounting", 1.0),
        ("discounting", 0.0),
        ("noop_max", 0),
        ("seed", 0),
        ("max_restarts", 0),
        ("rendezvous_port", 65_535),
        ("num_levels", 0),
        ("num_levels", 2**31 - 1),
        ("start_level", 2**31 - 201),
    ],
)
def test_the_limits_themselves_are_valid(name: str, value: float) -> None:
    assert configs.problems(changed(**{name: value})) == []


@pytest.mark.parametrize(
    ("flags", "start"),
    [
        (
            {"start_level": 2**31 - 200},
            "--start_level=2147483448 with --num_levels=200: the last level of Procgen is 2147",
        ),
        (
            {"start_level": 2**31 - 1, "num_levels": 0},
            "--start_level=2147483647 with --num_levels=0: the last level",
        ),
        ({"agent_name": "ResNet"}, "--agent_name=ResNet: no such agent; use one of"),
        (
            {"job_name": "learner", "learner_hosts": "a:1", "algorithm": ":"},
            "--algorithm=:: must be module:NAME",
        ),
        ({"algorithm": "sac"}, "--algorithm=sac: no such algorithm; use one of impala, appo, ppo"),
        ({"learner_hosts": "a:1,b"}, "--learner_hosts: 'b' is not host:port"),
        ({"learner_hosts": "a:99999"}, "--learner_hosts: 'a:99999' is not host:port"),
        ({"job_name": "actor"}, "--job_name=actor: needs --learner_hosts"),
        (
            {"job_name": "learner", "learner_hosts": "a:1,b:1", "task": 2},
            "--task=2: --learner_hosts names 2 learner(s)",
        ),
        (
            {"job_name": "actor", "learner_hosts": "a:1", "actor_hosts": "c", "task": 1},
            "--task=1: --actor_hosts names 1 actor(s)",
        ),
        (
            {"job_name": "actor", "learner_hosts": "a:1", "workers_csv_path": "w.csv"},
            "--workers_csv_path: ",
        ),
        (
            {"job_name": "learner", "learner_hosts": "a:1", "algorithm": "ppo"},
            "--algorithm=ppo: a learner needs --actor_hosts, or a --batch_size that is the",
        ),
        (
            {"job_name": "learner", "learner_hosts": "a:1", "synchronization": "trajectory"},
            "--synchronization=trajectory: a learner needs --actor_hosts, or a --batch_size",
        ),
        ({"synchronization": "step"}, "--synchronization=step: all environments share one"),
        ({"env": ("A=1",)}, "--env: only for a launch with --workers_csv_path"),
        ({"secret": ("A",)}, "--secret: only for a launch with --workers_csv_path"),
        ({"env": ("Pong",), **LAUNCH}, "--env=Pong: must be NAME=VALUE, with a variable's name (a"),
        ({"env": ("1A=canary",), **LAUNCH}, "--env=1A: must be NAME=VALUE, with a variable's name"),
        ({"secret": ("A=canary",), **LAUNCH}, "--secret=A: give the name alone; its value is"),
        ({"secret": ("a b",), **LAUNCH}, "--secret=a b: must be the name of a variable"),
        (
            {"env": ("A=1", "B=2"), "secret": ("A",), **LAUNCH},
            "--env and --secret: A is given twice",
        ),
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


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ("localhost:1", True),
        ("10.0.0.1:65535", True),
        ("my-host_1.example:8000", True),
        ("[::1]:8000", True),
        ("[fe80::1.2.3.4]:8000", True),
        ("host", False),
        ("host:", False),
        (":8000", False),
        ("host:0", False),
        ("host:65536", False),
        ("host:x", False),
        ("::1:8000", False),
        ("[::1]", False),
        ("user@host:22", False),
        ("host:80\n", False),
        ("host.example.:8000", True),
        ("a..b:1", False),
        (f"{'a' * 64}:1", False),
    ],
)
def test_a_host_and_port_are_checked(text: str, valid: bool) -> None:
    """They are used on the command lines of other machines."""
    assert valid_host_port(text) is valid


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
