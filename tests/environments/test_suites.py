"""Levels: what is known about them, and which are refused."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from impala_tf.config import ConfigError, user_commands
from impala_tf.environments import suites
from impala_tf.types import EnvironmentSpec, ObservationSpec
from tests.helpers.games import BROKEN_WORLDS, WORLDS, level, vector_of
from tests.helpers.runs import PROJECT


def test_a_spec_is_the_same_after_it_was_json() -> None:
    """A run's processes read it from a file, with numbers that float64 cannot express."""
    two = "ALE/Pong-v5,ALE/Breakout-v5"
    for name in (two, f"{WORLDS}:Everything-v0", "tests.environments.test_spaces:Far"):
        spec = suites.spec(level(name))
        assert EnvironmentSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("pong", "no such level; near matches: PongNoFrameskip-v4"),
        ("CartPole", "no such level; near matches: CartPole-v1"),
        ("no_such_module:Env-v0", "cannot import the module 'no_such_module'"),
        (f"{BROKEN_WORLDS}:DictActions-v0", r"has actions Dict\(.*; only Discrete, "),
        (f"{WORLDS}:UnboundedPictures-v0", r"images of float32 without bounds; give "),
        (f"{BROKEN_WORLDS}:NoAutoreset-v0", "DISABLED; .* NEXT_STEP, or .* entry_point"),
        (f"{BROKEN_WORLDS}:NeedsFile-v0", "raised FileNotFoundError: .*maze.txt' .broken_worlds"),
    ],
)
def test_an_unusable_level_is_one_line_that_says_what_would_work(name: str, problem: str) -> None:
    """Not a traceback after the launch."""
    with pytest.raises(ConfigError, match=problem) as caught:
        suites.spec(level(name))
    (line,) = caught.value.problems
    assert line.startswith("--level_name=")
    assert "\n" not in line


def test_levels_of_the_gym_before_gymnasium_are_played() -> None:
    """Worker processes import it, too."""
    old = level("gym:CartPole-v1", environment_processes=True)
    spec = suites.spec(old)
    assert (spec.observation, spec.time_limit) == (ObservationSpec("vector", (4,)), 500)
    made = vector_of(old, 2)
    observations, _ = made.reset()
    made.close()
    assert observations.shape == (2, 4)
    with pytest.raises(ConfigError, match="^--level_name=gym:New-v0: .*doesn't exist"):
        suites.spec(level("gym:New-v0"))


def test_levels_that_cannot_be_drawn_are_known_before_a_game() -> None:
    assert suites.spec(level("CartPole-v1")).renders
    assert suites.spec(level("PongNoFrameskip-v4")).renders
    assert not suites.spec(level("examples.own_level:Corridor")).renders
    # It could, but takes no render_mode.
    assert not suites.spec(level("tests.helpers.worlds:acrobot")).renders


WITHOUT_MUJOCO = """
import sys
sys.modules["mujoco"] = None
from impala_tf.config import ConfigError, EnvironmentConfig
from impala_tf.environments import suites
try:
    suites.spec(EnvironmentConfig(level_name="HalfCheetah-v5"))
except ConfigError as error:
    print(error)
"""


def test_a_missing_package_names_the_extra_that_has_it() -> None:
    """In a fresh process, in which nothing has imported the package yet."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_MUJOCO], capture_output=True, text=True, cwd=PROJECT
    )
    install = user_commands.install_extra("worlds")
    line = f"--level_name=HalfCheetah-v5: needs the extra worlds: {install}"
    assert done.stdout.strip() == line, done.stderr
