"""Levels: what is known about them, and which are refused."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.vector import SyncVectorEnv

from impala_tf.config import ConfigError, LevelRaisedError, user_commands
from impala_tf.environments import single, suites
from impala_tf.types import EnvironmentSpec, ObservationSpec
from tests.helpers.games import BROKEN_WORLDS, WORLDS, level, rendered, vector_of
from tests.helpers.runs import PROJECT
from tests.helpers.worlds import Pictures


@pytest.mark.parametrize(
    "name",
    [
        "ALE/Pong-v5,ALE/Breakout-v5",
        "Pendulum-v1",
        f"{WORLDS}:Everything-v0",
        "tests.environments.test_spaces:Far",
    ],
)
def test_a_spec_is_the_same_after_it_was_json(name: str) -> None:
    """A run's processes read it from a file, with numbers that float64 cannot express."""
    spec = suites.spec(level(name))
    assert EnvironmentSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("pong", "no such level; near matches: PongNoFrameskip-v4"),
        ("halfcheetah", "no such level; near matches: HalfCheetah-v5"),
        ("CartPole", "no such level; near matches: CartPole-v1"),
        (f"{WORLDS}:MaskedCartpole-v1", "no such level; near matches: MaskedCartPole-v1"),
        ("#!?", "no such level; no name is similar"),
        ("no_such_module:Env-v0", "cannot import the module 'no_such_module'"),
        (f"{BROKEN_WORLDS}:DictActions-v0", r"has actions Dict\(.*; only Discrete, "),
        (f"{BROKEN_WORLDS}:Graph-v0", r"has observations Graph\(.*; only images "),
        (f"{WORLDS}:UnboundedPictures-v0", r"images of float32 without bounds; give "),
        (f"{BROKEN_WORLDS}:NoAutoreset-v0", "DISABLED; .* NEXT_STEP, or .* entry_point"),
        (
            f"{BROKEN_WORLDS}:NeedsUninstalled-v0",
            "not installed: Moon .* run `pip install moon`",
        ),
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


def test_a_module_that_ends_the_process_is_one_line(tmp_path, monkeypatch) -> None:
    """A script without a guard, whose end would look like the end of the run."""
    (tmp_path / "script_level.py").write_text("import sys\nsys.exit(0)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match='under: if __name__ == "__main__":') as caught:
        suites.spec(level("script_level:Level"))
    assert "SystemExit: 0 (script_level.py, line 2)" in str(caught.value)


OLD_WORLD = """
import gym, numpy as np

class Old(gym.Env):
    observation_space = gym.spaces.Box(0, 1, (3,))
    action_space = gym.spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        return np.zeros(3, np.float32), {}

    def step(self, action):
        return np.ones(3, np.float32), 1.0, False, False, {}

gym.register("Old-v0", Old, max_episode_steps=7)
"""


def test_a_module_may_register_levels_of_the_gym_before_gymnasium(tmp_path, monkeypatch) -> None:
    """Worker processes import it, too."""
    (tmp_path / "old_world.py").write_text(OLD_WORLD)
    monkeypatch.syspath_prepend(tmp_path)
    old = level("gym:old_world:Old-v0", environment_processes=True)
    spec = suites.spec(old)
    assert (spec.observation, spec.time_limit) == (ObservationSpec("vector", (3,)), 7)
    made = vector_of(old, 2)
    observations, _ = made.reset()
    made.close()
    assert observations.shape == (2, 3)
    with pytest.raises(ConfigError, match="^--level_name=gym:old_world:New-v0: .*doesn't exist"):
        suites.spec(level("gym:old_world:New-v0"))


def test_what_is_installed_is_listed_and_adapters_are_not() -> None:
    names = single.installed()
    assert {"MinAtar/Breakout-v1", "MiniGrid-Empty-5x5-v0", "CartPole-v1"} <= set(names)
    assert not [name for name in names if name.startswith("GymV")]


def test_what_is_drawn_must_be_a_picture() -> None:
    rendered(level("CartPole-v1"), 0).check()
    for shown, said in ((None, "None"), (np.zeros((4, 4)), r"float64 \[4, 4\]")):
        drawn = functools.partial(Draws, shown)
        gymnasium.registry.pop("Draws-v0", None)
        gymnasium.register("Draws-v0", drawn)
        with pytest.raises(ConfigError, match=f"must return a picture, .* returned {said}"):
            rendered(level("Draws-v0"), 0).check()


class Draws(CartPoleEnv):
    def __init__(self, shown, render_mode=None) -> None:
        super().__init__(render_mode=render_mode)
        self._shown = shown

    def render(self):
        return self._shown


def test_levels_that_cannot_be_drawn_are_known_before_a_game() -> None:
    assert suites.spec(level("CartPole-v1")).renders
    assert suites.spec(level("PongNoFrameskip-v4")).renders
    assert not suites.spec(level("examples.own_level:Corridor")).renders
    # It could, but takes no render_mode.
    assert not suites.spec(level("tests.helpers.worlds:acrobot")).renders


@pytest.mark.parametrize("channels", [3, 12])  # one picture, and a stack of four
def test_pictures_of_vector_environments_have_channels_last(channels) -> None:
    """Otherwise agents would see few rows."""

    def rows(**given: Any) -> Any:
        return SyncVectorEnv([lambda: Pictures((channels, 16, 16))] * given["num_envs"])

    gymnasium.registry.pop("Rows-v0", None)
    gymnasium.register("Rows-v0", None, vector_entry_point=rows)
    made = vector_of(level("Rows-v0"), 2)
    own = rows(num_envs=2)
    found, expected = made.reset(seed=1)[0], own.reset(seed=1)[0]
    np.testing.assert_array_equal(found, np.moveaxis(expected, 1, -1))
    made.close()


def test_a_vector_environment_that_raises_is_not_replaced_in_silence() -> None:
    """It may work in a moment; the other one is slower, and may have other dynamics."""

    def simulator(**given: object) -> Any:
        raise ConnectionRefusedError("no simulator")

    cart_pole = "gymnasium.envs.classic_control:CartPoleEnv"
    gymnasium.registry.pop("Both-v1", None)
    gymnasium.register("Both-v1", cart_pole, vector_entry_point=simulator)
    with pytest.raises(LevelRaisedError, match="raised ConnectionRefusedError: no simulator"):
        vector_of(level("Both-v1"), 2)


def test_a_level_that_exists_only_natively_refuses_the_flags_that_it_cannot_support() -> None:
    gymnasium.register(
        "OnlyNative-v0",
        vector_entry_point="gymnasium.envs.classic_control.cartpole:CartPoleVectorEnv",
    )
    vector_of(level("OnlyNative-v0"), 2).close()
    with pytest.raises(ConfigError, match="leave out --num_action_repeats, .* and --level_wrap"):
        suites.spec(level("OnlyNative-v0", num_action_repeats=2))


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [
        ("HalfCheetah-v5", "mujoco", "worlds"),
        ("MinAtar/Breakout-v1", "minatar", "worlds"),
        ("procgen:coinrun", "envpool", "procgen"),
        ("retro:Airstriker-Genesis-v0", "stable_retro", "retro"),
    ],
)
def test_a_missing_package_names_the_extra_that_has_it(name: str, package: str, extra: str) -> None:
    """In a fresh process, in which nothing has imported the package yet."""
    code = f"""if True:
        import sys
        sys.modules[{package!r}] = None
        from impala_tf.config import ConfigError, EnvironmentConfig
        from impala_tf.environments import suites
        try:
            suites.spec(EnvironmentConfig(level_name={name!r}))
        except ConfigError as error:
            print(*error.problems, sep="\\n")
    """
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=PROJECT
    )
    install = user_commands.install_extra(extra)
    assert done.stdout == f"--level_name={name}: needs the extra {extra}: {install}\n", done.stderr
