"""The object around a vector environment: its steps become those that `types.py` describes."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tree
from gymnasium.vector import SyncVectorEnv, VectorEnv

from impala_tf.environments import spaces
from impala_tf.environments.guard import Guard
from impala_tf.environments.infos import OWN, InfoMetrics
from impala_tf.environments.simplify import BrokenEnvironmentError
from impala_tf.environments.workers import InProcesses, close, ends_are_errors
from impala_tf.types import LARGEST_REWARD, EnvOutput, Episode

LIFE_LOST = f"a life was lost{OWN}"
"""Key of `info`, bool [N]: a life was lost that ends an episode for learning but not the game."""

_log = logging.getLogger("impala_tf.environments")


class BatchedEnvironment:
    """N environments, stepped together, which return `types.EnvOutput`.

    Observations have the layout "from the environment" of `observations.py`. They are the
    environment's own arrays, which the next step may overwrite: copy what must last. (ALE returns
    new arrays at every step.)

    With a guard, if making them fails, it is retried. If a step raises or returns numbers that are
    not finite, all N are made again, and the step returns their first observations. To the learner,
    this looks like truncated episodes.

    Args:
      make: makes the vector environment, whose autoreset mode is NEXT_STEP; see `suites.make`.
      seed: the seed of the first reset, at least 0, or a function of the number of restarts that is
        called then. Later resets continue the same random sequence.
      infos: reads --info_metrics at the end of episodes; None: there are none.
      stagger: the time limit of an episode, in steps, to cut the first one of each environment at
        another time, so that later ones begin apart; 0: they are not cut. A cut episode looks
        truncated, and its return does not count. Otherwise episodes that last until the time limit
        would always end together, and all unrolls of a batch would cover the same part of an
        episode (Bharthulwar et al., 2025, arXiv 2511.21011).
      guard: what happens when environments break; None: errors are raised. It is closed with them.

    Attributes:
      level_indices: int32 [N], the level of each environment, an index in EnvironmentSpec.levels.
      restarts: how often the environments were made again.

    Raises:
      ConfigError: `make` raised it, also in the first reset or step if these do not fit the level.
      BrokenTooOftenError: the environments could not be made or have broken too often.
    """

    def __init__(
        self,
        make: Callable[[], VectorEnv[Any, Any, Any]],
        seed: int | Callable[[int], int],
        infos: InfoMetrics | None = None,
        stagger: int = 0,
        guard: Guard | None = None,
    ) -> None:
        self._make, self._stagger, self._guard = make, stagger, guard
        self._seed = seed if callable(seed) else lambda restarts: seed
        self._infos = infos or InfoMetrics(())
        self._episodes: list[Episode] = []
        self._last_actions: np.ndarray | None = None
        try:
            self._open()
        except BaseException:
            if guard is not None:
                guard.close()
            raise

    def reset(self) -> EnvOutput:
        """Starts new games everywhere and returns their first step. Drops unfinished games."""
        return self._guarded(self._reset)

    def step(self, actions: np.ndarray) -> EnvOutput:
        """Takes actions [N, *ActionSpec.shape] and returns the next step."""
        if self._guard is None:
            return self._step(actions)
        self._last_actions = actions
        return self._guarded(lambda: self._step(actions))

    def pop_episodes(self) -> list[Episode]:
        """Returns the games that ended since the last call, oldest first."""
        episodes, self._episodes = self._episodes, []
        return episodes

    def close(self) -> None:
        """Closes the environments and their processes."""
        if self._guard is None:
            close(self._env)
        else:
            with self._guard.expects("closing"):
                close(self._env)
            self._guard.close()

    def _open(self) -> None:
        env = self._env = self._make() if self._guard is None else self._guard.make(self._make)
        self.restarts = 0 if self._guard is None else self._guard.restarts
        self._num_envs = env.num_envs
        actions = spaces.action_spec(env.single_action_space)
        self._no_action = np.zeros((self._num_envs, *actions.shape), actions.dtype)
        self._to_environment = spaces.action_converter(env.single_action_space)
        self.level_indices: np.ndarray = getattr(
            env.unwrapped, "level_indices", np.zeros(self._num_envs, np.int32)
        )
        self._none = np.zeros(self._num_envs, np.bool_)
        self._is_new = True  # until its first reset
        self._left = np.zeros(self._num_envs, np.int64)
        self._returns = np.zeros(self._num_envs, np.float64)
        self._lengths = np.zeros(self._num_envs, np.int64)

    def _guarded(self, act: Callable[[], EnvOutput]) -> EnvOutput:
        if self._guard is None:
            return act()
        while True:
            try:
                with self._guard.expects("a step"):
                    output = act()
                self._check(output, self._guard.level_names)
                if self._last_actions is not None:
                    self._guard.count(self._num_envs)
                return output
            except Exception as error:
                self._guard.handle(error, self.level_indices)
                _log.warning("the environments broke after actions %s", self._last_actions)
                valid = [game for game in self._episodes if math.isfinite(game.episode_return)]
                if len(valid) < len(self._episodes):
                    _log.warning("games with NaN or infinite rewards do not count")
                self._episodes = valid
                with self._guard.expects("closing"):
                    close(self._env)
                self._open()
                act = self._reset

    def _check(self, output: EnvOutput, level_names: Sequence[str]) -> None:
        """Raises BrokenEnvironmentError if a number is not finite, or a reward is absurd."""
        arrays = {"reward": output.reward}
        for path, part in tree.flatten_with_path(output.observation):
            arrays[".".join(map(str, ("observation", *path)))] = part
        for name, array in arrays.items():
            if array.dtype.kind != "f":
                continue
            most = LARGEST_REWARD if name == "reward" else np.finfo(array.dtype).max
            fits = np.abs(array) <= most
            if not fits.all():
                where = int(np.argwhere(~fits)[0][0])
                is_finite = np.isfinite(array[where]).all()
                what = f"beyond {most:g}" if is_finite else "NaN or infinite"
                actions, level = self._last_actions, level_names[self.level_indices[where]]
                after = "the reset" if actions is None else f"action {actions[where]}"
                raise BrokenEnvironmentError(
                    f"environment {where} of {level}: {name} is {what} after {after}"
                )

    def _reset(self) -> EnvOutput:
        seed = _spread(self._seed(self.restarts)) if self._is_new else None
        with ends_are_errors(self._env):
            observation, _ = self._env.reset(seed=seed)
        # A level's own vector environment might ignore `reset_mask`.
        can_cut = type(self._env.unwrapped) in (InProcesses, SyncVectorEnv)
        if seed is not None and self._stagger and can_cut:
            self._left = cut_times(self._num_envs, self._stagger, seed)
        self._is_new = False
        self._game_over = self._cut = self._none
        self._returns.fill(0)
        self._lengths.fill(0)
        all_envs, no_envs = np.ones(self._num_envs, np.bool_), self._none
        return EnvOutput(
            reward=np.zeros(self._num_envs, np.float32),
            terminated=no_envs.copy(),
            truncated=no_envs.copy(),
            autoreset=all_envs,
            episode_start=all_envs.copy(),
            observation=observation,
            last_action=self._no_action,
        )

    def _step(self, actions: np.ndarray) -> EnvOutput:
        with ends_are_errors(self._env):
            observation, reward, terminated, truncated, info = self._env.step(
                self._to_environment(actions)
            )
            if self._cut.any():  # the action after a cut is ignored, as after every end
                observation, _ = self._env.reset(options={"reset_mask": self._cut.copy()})
                terminated, truncated = terminated & ~self._cut, truncated & ~self._cut
        life_lost = info.get(LIFE_LOST, self._none)
        self._left -= 1
        # An episode that ends or begins in this step is not cut.
        self._cut = (self._left == 0) & ~(terminated | truncated | self._game_over)
        truncated = truncated | self._cut
        was_over, self._game_over = self._game_over, terminated | truncated
        reward = np.where(was_over, 0, reward)
        self._returns += reward
        self._lengths += ~was_over
        if self._game_over.any():
            self._end_games(info)
        terminated = terminated | life_lost
        return EnvOutput(
            reward=reward.astype(np.float32),
            terminated=terminated,
            truncated=truncated & ~terminated,
            autoreset=was_over,
            episode_start=was_over | life_lost,
            observation=observation,
            last_action=actions.astype(self._no_action.dtype),
        )

    def _end_games(self, info: dict[str, Any]) -> None:
        for n in map(int, np.flatnonzero(self._game_over & ~self._cut)):
            self._episodes.append(
                Episode(
                    episode_return=float(self._returns[n]),
                    episode_length=int(self._lengths[n]),
                    environment=n,
                    level=int(self.level_indices[n]),
                    info=self._infos.read(info, n),
                )
            )
        self._returns[self._game_over] = 0
        self._lengths[self._game_over] = 0


def cut_times(num_envs: int, time_limit: int, seed: int) -> np.ndarray:
    """Returns after how many steps to cut an episode of each environment, int [N].

    Each is drawn within a part of its own of the time limit.
    """
    parts = np.arange(num_envs) + np.random.default_rng(seed).random(num_envs)
    return 1 + (parts * time_limit / num_envs).astype(np.int64)


def _spread(seed: int) -> int:
    """Maps neighbouring seeds to distant ones, below 2**30 because ALE uses a C int.

    Vector environments count up from one seed, so neighbouring seeds would give nearly the same
    environments.
    """
    return int(np.random.SeedSequence(seed).generate_state(1)[0] >> 2)
