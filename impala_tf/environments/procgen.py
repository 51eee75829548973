"""Procgen: 16 games whose levels are generated from seeds (Cobbe et al., 2020, arXiv 1912.01588).

EnvPool runs them natively, with NEXT_STEP autoreset: it returns the final observation of a level,
and distinguishes its time limit from its end. (OpenAI's own vector environment returns the next
level's first observation instead, and does not distinguish them.)
"""

from __future__ import annotations

import ctypes
import dataclasses
import difflib
import importlib.util
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from impala_tf.config import ConfigError, EnvironmentConfig
from impala_tf.environments.scores import PROCGEN16, PROCGEN_SCORES
from impala_tf.environments.suite import Suite, missing_package
from impala_tf.types import ActionSpec, EnvironmentSpec, ObservationSpec

_PREFIX = "procgen:"
_PIXELS = 64
_NUM_ACTIONS = 15
_PLAYED_AT_FPS = 15  # by people
_SEEDS = 2**31 - 1
_STEPS = {
    "bigfish": 6000, "bossfight": 4000, "caveflyer": 1000, "chaser": 1000,
    "climber": 1000, "coinrun": 1000, "dodgeball": 1000, "fruitbot": 1000,
    "heist": 1000, "jumper": 1000, "leaper": 500, "maze": 500,
    "miner": 1000, "ninja": 1000, "plunder": 4000, "starpilot": 1000,
}  # fmt: skip

_SHARED_LIBRARY, _DEBIAN_PACKAGE = "libQt5Gui.so.5", "libqt5gui5"


def spec(env: EnvironmentConfig) -> EnvironmentSpec:
    """Describes a Procgen level.

    Raises:
      ConfigError: there is no such game, --num_action_repeats is given, or the engine is missing.
    """
    game = _game(env)
    _check_engine(env.level_name)
    return EnvironmentSpec(
        level_name=env.level_name,
        kind="procgen",
        observation=ObservationSpec("image", (_PIXELS, _PIXELS, 3)),
        actions=ActionSpec("discrete", (_NUM_ACTIONS,)),
        stacked_frames=0,
        frames_per_step=1,
        protocol=f"Procgen {game} {_PIXELS}x{_PIXELS} RGB, {env.distribution_mode}, "
        f"levels {level_range(env)}, {_NUM_ACTIONS} actions, at most {_STEPS[game]} frames",
        renders=True,
    )


def level_range(env: EnvironmentConfig) -> str:
    """Returns the range of levels that are played: '0-199', or 'from 200' without an end."""
    if env.num_levels == 0:
        return f"from {env.start_level}"
    return f"{env.start_level}-{env.start_level + env.num_levels - 1}"


def unseen(env: EnvironmentConfig) -> EnvironmentConfig | None:
    """Returns the config of all levels after those of `env`; None if there are none."""
    start = env.start_level + env.num_levels
    if env.num_levels == 0 or start >= _SEEDS:
        return None
    return dataclasses.replace(env, start_level=start, num_levels=0)


class Games(VectorEnv[Any, Any, Any]):
    """N games of EnvPool. Each step returns new arrays, with observations uint8 [N, 64, 64, 3].

    Each game draws its own sequence of levels. `info["level_seed"]`, int32 [N], names the current
    ones. Raises ConfigError as `spec` does.
    """

    def __init__(self, env: EnvironmentConfig, num_envs: int, num_threads: int) -> None:
        """Does not make the games: the first `reset` has their seed. `num_threads=0`: all cores."""
        self._task = f"{_game(env).capitalize()}{env.distribution_mode.capitalize()}-v0"
        _check_engine(env.level_name)
        self._settings = {
            "num_threads": num_threads,
            "channel_first": False,
            "start_level": env.start_level,
            # With 0, EnvPool would ignore --start_level.
            "num_levels": env.num_levels or _SEEDS - env.start_level,
        }
        self._games: Any = None
        self.num_envs = num_envs
        self.metadata = {
            "autoreset_mode": AutoresetMode.NEXT_STEP,
            "render_modes": ["rgb_array"],
            "render_fps": _PLAYED_AT_FPS,
        }
        self.single_observation_space = Box(0, 255, (_PIXELS, _PIXELS, 3), np.uint8)
        self.single_action_space = Discrete(_NUM_ACTIONS)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Starts a level in every game. With a `seed`, new random sequences of levels start."""
        import envpool

        if self._games is None or seed is not None:
            self._games = envpool.make_gymnasium(
                self._task, num_envs=self.num_envs, seed=seed or 0, **self._settings
            )
        self._observation, info = self._games.reset()
        return self._observation, {"level_seed": info["level_seed"]}

    def step(self, actions: np.ndarray) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Steps all games. A game that has just ended ignores its action and restarts."""
        self._observation, reward, terminated, truncated, info = self._games.step(
            actions.astype(np.int32, copy=False)
        )
        info = {"level_seed": info["level_seed"]}
        return self._observation, reward, terminated, truncated, info

    def render(self) -> tuple[np.ndarray]:
        """Returns the first game's observation, (uint8 [64, 64, 3],)."""
        return (self._observation[0],)

    def close_extras(self, **kwargs: Any) -> None:
        """Ends EnvPool's threads."""
        if self._games is not None:
            self._games.close()
            self._games = None


def _name(env: EnvironmentConfig) -> str:
    return env.level_name.removeprefix(_PREFIX)


def _game(env: EnvironmentConfig) -> str:
    """Returns the game's name; ConfigError if there is no such game, or a flag does not suit it."""
    game = _name(env)
    if game not in _STEPS:
        near = difflib.get_close_matches(game.lower(), _STEPS, n=3)
        names = f"near matches: {', '.join(near)}" if near else f"games: {', '.join(_STEPS)}"
        raise ConfigError(f"--level_name={env.level_name}: Procgen has no such game; {names}")
    if env.num_action_repeats != 1:
        raise ConfigError(
            f"--num_action_repeats={env.num_action_repeats}: actions are not repeated in Procgen; "
            "leave the flag out"
        )
    return game


def _check_engine(level_name: str) -> None:
    """Raises ConfigError if EnvPool, or a shared library that its Procgen needs, is missing.

    It does not import EnvPool, which takes seconds and 100 MB: some processes only describe levels.
    """
    if importlib.util.find_spec("envpool") is None:
        raise ConfigError(missing_package(f"--level_name={level_name}", "envpool"))
    try:
        ctypes.CDLL(_SHARED_LIBRARY)
    except OSError as error:
        raise ConfigError(
            f"--level_name={level_name}: Procgen needs the library {_SHARED_LIBRARY}; "
            f"on Debian: apt-get install {_DEBIAN_PACKAGE}"
        ) from error


SUITE = Suite(
    about="Procgen (extra procgen)",
    installed=lambda: PROCGEN16 if importlib.util.find_spec("envpool") else (),
    owns=lambda level_name: level_name.startswith(_PREFIX),
    spec=spec,
    make=Games,
    make_rendered=lambda env: Games(env, num_envs=1, num_threads=1),
    lists={"procgen16": PROCGEN16},
    score_range=lambda env: PROCGEN_SCORES[env.distribution_mode].get(_name(env)),
    level_range=level_range,
    unseen=unseen,
)
