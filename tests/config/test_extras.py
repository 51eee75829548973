"""The packages that a level needs are known from its name, where Gymnasium is not there to ask."""

from __future__ import annotations

import gymnasium
import pytest

from impala_tf.config import Given, extras


def of_level(name: str) -> list[str]:
    return extras.of_run(Given({"level_name": name}).everything())


def test_levels_of_gymnasium_that_need_more_packages_are_known() -> None:
    needing = ("gymnasium.envs.mujoco", "gymnasium.envs.box2d")
    for level in gymnasium.registry.values():
        entry_point = str(level.entry_point)
        if entry_point.startswith("gymnasium.envs."):
            expected = ["worlds"] if entry_point.startswith(needing) else []
            assert of_level(level.id) == expected, level.id


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("PongNoFrameskip-v4", []),
        ("atari57", []),
        ("my_ants:Ant-v5", []),
        ("procgen16", ["procgen"]),
        ("procgen:coinrun, retro:Airstriker-Genesis-v0", ["procgen", "retro"]),
        ("MiniGrid-Empty-5x5-v0", ["worlds"]),
        ("minigrid:MiniGrid-Empty-5x5-v0", ["worlds"]),
        ("BabyAI-GoToObj-v0", ["worlds"]),
        ("MinAtar/Breakout-v1", ["worlds"]),
        ("gym:CartPole-v1", ["worlds"]),
        ("CartPole-v1,LunarLander-v3", ["worlds"]),
    ],
)
def test_what_a_level_needs(name: str, expected: list[str]) -> None:
    assert of_level(name) == expected


def test_what_other_flags_need() -> None:
    flags = Given({"level_name": "CartPole-v1", "track": "wandb", "mirror": "s3://bucket/run"})
    assert extras.of_run(flags.everything()) == ["wandb", "mirror"]
    flags = flags.replace(mirror="host:path", track="none")
    assert extras.of_run(flags.everything()) == []
