"""Converts the steps of a Gymnasium vector environment to those that `types.py` describes."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
import types
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, VectorEnv

from impala_tf.config import plug_ins
from impala_tf.environments import spaces
from impala_tf.environments.infos import OWN, Info, InfoMetrics
from impala_tf.machine.process_lifetime import die_with_parent
from impala_tf.types import EnvOutput, Episode

_log = logging.getLogger("impala_tf.environments")

LIFE_LOST = f"a life was lost{OWN}"
"""Key of `info`, bool [N]: a life was lost that ends an episode for learning but not the game."""
CUT = f"an episode was cut{OWN}"
"""Key of `info`, bool [N]: an episode was truncated here whose return does not count."""
AUTORESET_MODES = (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP)
_CLOSE_S, _END_S = 1.0, 60.0
"""How long closing waits for an unfinished step, and for worker processes, in seconds."""


class BatchedEnvironment:
    """N environments, stepped together, which return `types.EnvOutput`.

    Observations have the layout "from the environment" of `observations.py`. They are the
    environment's own arrays, which the next step may overwrite: copy what must last. (ALE returns
    new arrays at every step.)

    With SAME_STEP autoreset, the step that ends a game has the next game's first observation. If
    the game terminated, the step looks like the loss of a life. If the game was truncated, the last
    transition cannot be learned from, because the observation to bootstrap from is missing: the
    step counts as `autoreset`.

    Attributes:
      level_indices: int32 [N], the level of each environment, an index in EnvironmentSpec.levels.
    """

    restarts = 0  # `GuardedEnvironment` counts them

    def __init__(self, env: VectorEnv[Any, Any, Any], infos: InfoMetrics | None = None) -> None:
        """Takes ownership of an environment.

        Args:
          env: the environment, whose autoreset modes are among AUTORESET_MODES.
          infos: reads --info_metrics at the end of episodes; None: there are none.
        """
        self._env = env
        self._infos = infos or InfoMetrics(())
        self._num_envs = env.num_envs
        self._same_step = same_step(env)
        actions = spaces.action_spec(env.single_action_space)
        self._no_action = np.zeros((self._num_envs, *actions.shape), actions.dtype)
        self._to_environment = spaces.action_converter(env.single_action_space)
        self._to_agent = spaces.observation_converter(env.single_observation_space)
        self.level_indices: np.ndarray = getattr(
            env, "level_indices", np.zeros(self._num_envs, np.int32)
        )
        self._none = np.zeros(self._num_envs, np.bool_)
        self._episodes: list[Episode] = []
        self._game_over: np.ndarray = np.zeros(self._num_envs, np.bool_)
        self._returns = np.zeros(self._num_envs, np.float64)
        self._lengths = np.zeros(self._num_envs, np.int64)

    def reset(self) -> EnvOutput:
        """Starts new games everywhere and returns their first step. Drops unfinished games."""
        with exits_are_errors():
            observation, _ = self._env.reset()
        self._game_over = np.zeros(self._num_envs, np.bool_)
        self._returns.fill(0)
        self._lengths.fill(0)
        all_envs = np.ones(self._num_envs, np.bool_)
        no_envs = np.zeros(self._num_envs, np.bool_)
        return EnvOutput(
            reward=np.zeros(self._num_envs, np.float32),
            terminated=no_envs,
            truncated=no_envs.copy(),
            autoreset=all_envs,
            episode_start=all_envs.copy(),
            observation=self._to_agent(observation),
            last_action=self._no_action,
        )

    def step(self, actions: np.ndarray) -> EnvOutput:
        """Takes actions [N, *ActionSpec.shape] and returns the next step."""
        with exits_are_errors():
            observation, reward, terminated, truncated, info = self._env.step(
                self._to_environment(actions)
            )
        life_lost = info.get(LIFE_LOST, self._none)
        was_over, self._game_over = self._game_over, terminated | truncated
        ignored = was_over & ~self._same_step
        reward = np.where(ignored, 0, reward)
        self._count(reward, ignored, info)
        autoreset = np.where(self._same_step, truncated & ~terminated, was_over)
        terminated = terminated | life_lost
        return EnvOutput(
            reward=np.where(autoreset, 0, reward).astype(np.float32),
            terminated=terminated,
            truncated=truncated & ~terminated & ~self._same_step,
            autoreset=autoreset,
            episode_start=autoreset | life_lost | (terminated & self._same_step),
            observation=self._to_agent(observation),
            last_action=actions.astype(self._no_action.dtype),
        )

    def pop_episodes(self) -> list[Episode]:
        """Returns the games that ended since the last call, oldest first."""
        episodes, self._episodes = self._episodes, []
        return episodes

    def close(self) -> None:
        """Closes the environments and their processes."""
        close(self._env)

    def _count(self, reward: np.ndarray, autoreset: np.ndarray, info: Info) -> None:
        self._returns += reward
        self._lengths += ~autoreset
        for n in np.flatnonzero(self._game_over & ~info.get(CUT, self._none)):
            level = int(self.level_indices[n])
            infos = self._infos.of(info, int(n), bool(self._same_step[n]))
            game = Episode(float(self._returns[n]), int(self._lengths[n]), int(n), level, infos)
            self._episodes.append(game)
        self._returns[self._game_over] = 0
        self._lengths[self._game_over] = 0


@contextlib.contextmanager
def exits_are_errors() -> Iterator[None]:
    """Turns sys.exit() in a level's code into a RuntimeError, since it does not end the run."""
    try:
        yield
    except SystemExit as end:
        raise RuntimeError(f"the level ended its process: {plug_ins.raised(end)}") from end


def same_step(env: VectorEnv[Any, Any, Any]) -> np.ndarray:
    """Returns which environments have SAME_STEP autoreset, bool [N]; the others have NEXT_STEP."""
    mode = env.metadata.get("autoreset_mode")
    default = np.full(env.num_envs, mode == AutoresetMode.SAME_STEP)
    is_same_step: np.ndarray = getattr(env, "same_step", default)
    return is_same_step


def ends_with_parent(env: gymnasium.Env[Any, Any], parent_pid: int) -> gymnasium.Env[Any, Any]:
    """Makes an environment's process end with its parent, and only then; returns `env`.

    AsyncVectorEnv also makes one environment in the parent itself, where this does nothing.
    """
    if os.getpid() != parent_pid:
        # Ctrl-C and a closed terminal reach all processes; only the parent acts on them.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        die_with_parent(parent_pid)
    return env


@contextlib.contextmanager
def main_hidden() -> Iterator[None]:
    """Keeps processes that are spawned inside from running the user's script again.

    Without `if __name__ == "__main__":` around its calls, the script would make the environments
    again in each of them. They find levels by the names of their modules, so they do not need it.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def close(vector: VectorEnv[Any, Any, Any]) -> None:
    """Closes environments, even if some of their worker processes have ended.

    Exceptions of the level's code are only logged, because they do no harm here.
    """
    inner = vector.unwrapped
    try:
        if isinstance(inner, AsyncVectorEnv):
            _close_processes(vector, inner)
        else:
            vector.close()
    except (Exception, SystemExit) as error:
        _log.warning("the environments did not close: %s", plug_ins.raised(error))


def _close_processes(vector: VectorEnv[Any, Any, Any], inner: AsyncVectorEnv) -> None:
    def kill() -> None:
        for process in inner.processes:
            process.kill()

    def give_up() -> None:
        _log.warning("closing took longer than %g s, so its processes were killed", _END_S)
        kill()

    # Gymnasium waits for the processes without a limit, and a level's close() may hang.
    timer = threading.Timer(_END_S, give_up)
    timer.start()
    try:
        vector.close(timeout=_CLOSE_S)
    except (EOFError, OSError) as error:
        _log.warning("a worker process of the environments had ended before: %r", error)
    finally:
        timer.cancel()
        kill()
        for process in inner.processes:
            process.join()
        inner.closed = True
