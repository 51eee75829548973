"""Flags: their ranges, their contradictions, and what the level decides."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from impala_tf import config as configs
from impala_tf.config import (
    Config,
    EnvironmentConfig,
    Given,
    command_line,
)
from impala_tf.config.addresses import valid_host_port
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


@pytest.mark.parametrize(
    ("flags", "threads"),
    [
        ({"agent_name": "ShallowConvNetAgent"}, 4),
        ({"agent_name": "SeparateMLPAgent"}, 4),
        ({"agent_name": "NatureAgent"}, 8),
        ({"agent_name": "ShallowConvNetAgent", "core": "lstm"}, 8),
        ({"agent_name": "ShallowConvNetAgent", "width_scale": 4}, 8),
        ({"agent_name": "ShallowConvNetAgent", "inference": "learner"}, 8),
        ({"agent_name": "ShallowConvNetAgent", "learner_hosts": "10.0.0.1:8001"}, 8),
        ({"agent_name": "ShallowConvNetAgent", "learner_hosts": "h:1,[::1]:1", "task": 1}, 4),
        ({"agent_name": "ShallowConvNetAgent", "algorithm": "ppo"}, 8),
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
