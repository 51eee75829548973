"""Procgen: 16 games whose levels are generated from seeds (Cobbe et al., 2020, arXiv 1912.01588).

EnvPool runs them natively, with NEXT_STEP autoreset: it returns the final observation of a level,
and distinguishes its time limit from its end. (OpenAI's own vector environment returns the next
level's first observation instead, and does not distinguish them.)
"""

from __future__ import annotations

import ctypes
import dataclasses
import importlib.util
from collections.abc import Iterable
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from impala_tf.config import ConfigError, EnvironmentConfig
from impala_tf.environments.scores import PROCGEN16, PROCGEN_SCORES
from impala_tf.environments.suite import Suite, missing_package, near_matches
from impala_tf.types import ActionSpec, EnvironmentSpec, ObservationSpec

_PREFIX = "procgen:"
_PIXELS = 64
_NUM_ACTIONS = 15
_PLAYED_AT_FPS = 15  # by people
_SEEDS = 2**31 - 1
_MOST_STEPS = {"bigfish": 6000, "bossfight": 4000, "plunder": 4000, "leaper": 500, "maze": 500}
_USUAL_STEPS = 1000
_SHARED_LIBRARY, _DEBIAN_PACKAGE = "libQt5Gui.so.5", "libqt5gui5"


class Procgen(Suite):
    """Procgen's games, by EnvPool."""

    about = "Procgen (extra procgen)"
    lists = {"procgen16": PROCGEN16}

    def owns(self, level_name: str) -> bool:
        """Returns whether it has the prefix procgen:."""
        return level_name.startswith(_PREFIX)

    def spec(self, env: EnvironmentConfig) -> EnvironmentSpec:
        """Describes a Procgen level.

        Raises:
          ConfigError: no such game, --num_action_repeats is given, or the engine is missing.
        """
        game = _check(env)
        steps = _MOST_STEPS.get(game, _USUAL_STEPS)
        return EnvironmentSpec(
            level_name=env.level_name,
            kind="procgen",
            observation=ObservationSpec("image", (_PIXELS, _PIXELS, 3)),
            actions=ActionSpec("discrete", (_NUM_ACTIONS,)),
            stacked_frames=0,
            frames_per_step=1,
            protocol=f"Procgen {game} {_PIXELS}x{_PIXELS} RGB, {env.distribution_mode}, levels"
            f" {self.level_range(env)}, {_NUM_ACTIONS} actions, at most {steps} frames",
            time_limit=steps,
            renders=True,
        )

    def make(
        self, env: EnvironmentConfig, spec: EnvironmentSpec, num_envs: int, num_threads: int
    ) -> VectorEnv[Any, Any, Any]:
        """Returns N games."""
        return EnvPoolGames(env, num_envs, num_threads)

    def installed(self) -> Iterable[str]:
        """Returns the names of all games, if EnvPool is installed."""
        return PROCGEN16 if importlib.util.find_spec("envpool") else ()

    def score_range(self, env: EnvironmentConfig) -> tuple[float, float] | None:
        """Returns R_min and R_max of the distribution mode."""
        game = env.level_name.removeprefix(_PREFIX)
        return PROCGEN_SCORES[env.distribution_mode].get(game)

    def level_range(self, env: EnvironmentConfig) -> str:
        """Returns the range of levels that are played: '0-199', or 'from 200' without an end."""
        if env.num_levels == 0:
            return f"from {env.start_level}"
        return f"{env.start_level}-{env.start_level + env.num_levels - 1}"

    def unseen(self, env: EnvironmentConfig) -> EnvironmentConfig | None:
        """Returns the config of all levels after those of `env`; None if there are none."""
        start = env.start_level + env.num_levels
        if env.num_levels == 0 or start >= _SEEDS:
            return None
        return dataclasses.replace(env, start_level=start, num_levels=0)


class EnvPoolGames(VectorEnv[Any, Any, Any]):
    """N games of EnvPool. Each step returns new arrays, with observations uint8 [N, 64, 64, 3].

    Each game draws its own sequence of levels. `info["level_seed"]`, int32 [N], names the current
    ones. Raises ConfigError as `Procgen.spec` does.
    """

    def __init__(self, env: EnvironmentConfig, num_envs: int, num_threads: int) -> None:
        """Does not make the games: the first `reset` has their seed. `num_threads=0`: all cores."""
        self._task = f"{_check(env).capitalize()}{env.distribution_mode.capitalize()}-v0"
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


def _check(env: EnvironmentConfig) -> str:
    """Returns the game's name; raises what `Procgen.spec` raises.

    It does not import EnvPool, which takes seconds and 100 MB: some processes only describe levels.
    """
    game, flag = env.level_name.removeprefix(_PREFIX), f"--level_name={env.level_name}"
    games = PROCGEN_SCORES["easy"]
    if game not in games:
        raise ConfigError(f"{flag}: Procgen has no such game; {near_matches(game, games)}")
    if env.num_action_repeats != 1:
        raise ConfigError(
            f"--num_action_repeats={env.num_action_repeats}: actions are not repeated in Procgen; "
            "leave the flag out"
        )
    if importlib.util.find_spec("envpool") is None:
        raise ConfigError(missing_package(flag, "envpool"))
    try:
        ctypes.CDLL(_SHARED_LIBRARY)
    except OSError as error:
        raise ConfigError(
            f"{flag}: Procgen needs the library {_SHARED_LIBRARY}; "
            f"on Debian: apt-get install {_DEBIAN_PACKAGE}"
        ) from error
    return game
