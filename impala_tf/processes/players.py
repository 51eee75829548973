"""A trained agent that plays, from a checkpoint or an exported folder."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from impala_tf import config as configs
from impala_tf.agents.interface import Policy
from impala_tf.checkpoint.compatibility import check_compatible, signature_of
from impala_tf.config import Config, ConfigError, EnvironmentConfig, Given, cores_here
from impala_tf.environments import suites
from impala_tf.environments.batched import BatchedEnvironment
from impala_tf.environments.suites import RenderedGame
from impala_tf.evaluation import exported, games
from impala_tf.logdir import Logdir
from impala_tf.processes import provenance, tensorflow_startup
from impala_tf.processes.common import logdir_of, resolve, same_folder, seed_of
from impala_tf.processes.trained_flags import as_exported, as_trained
from impala_tf.types import EnvironmentSpec, Episode, Nest

if TYPE_CHECKING:
    import tensorflow as tf

    from impala_tf.agents.agent import Agent

# Games played in parallel: enough to fill a batch, but not so many that most wait for the last one.
_MAX_ENVS = 16
_COUNTED = ("agent_steps", "environment_frames", "learner_updates")


class Player(NamedTuple):
    """A trained agent, and how it acts.

    `source` is the checkpoint or the model's file. `progress` has columns of metrics.csv when it
    was saved; of an exported agent, only environment_frames. `initial_state` maps N to the core
    state of N environments before their first step; `policy` maps (N, seed, how to choose actions)
    to their policy. `agent` is None for an exported agent.
    """

    config: Config
    spec: EnvironmentSpec
    source: Path
    progress: Mapping[str, float]
    initial_state: Callable[[int], Nest]
    policy: Callable[[int, int, Literal["sampled", "greedy"]], Policy]
    agent: Agent | None = None

    @property
    def environment_frames(self) -> int:
        """The frames that it was trained for."""
        return int(self.progress["environment_frames"])

    @property
    def logdir(self) -> Logdir:
        """The run's folder, or the exported one."""
        return logdir_of(self.config)

    def play(self, env: EnvironmentConfig, index: int = 0, num_threads: int = 0) -> list[Episode]:
        """Plays --test_num_episodes whole games of level `index`; see `games.play`.

        Their seeds derive from --seed, and differ from those of training. 0 threads: one per core.
        Raises ConfigError: the level cannot be made, or returns rewards that are not finite.
        """
        num_games = self.config.evaluation.test_num_episodes
        num_envs, seed = min(num_games, _MAX_ENVS), seed_of(self.config.run.seed, "test")
        threads = num_threads or min(num_envs, cores_here())
        episodes: list[Episode] = []
        printed_at = time.monotonic()
        with same_folder():
            made = BatchedEnvironment(
                lambda: suites.make(env, self.spec, num_envs, num_threads=threads, indices=[index]),
                seed,
            )
            with contextlib.closing(made) as environment:
                for episode in self._steps(environment, index, num_games, seed):
                    if episode is not None:
                        episodes.append(episode)
                    if time.monotonic() - printed_at >= self.config.run.metrics_interval_s:
                        printed_at = time.monotonic()
                        print(f"{len(episodes)} of {num_games} games played", flush=True)
        return episodes

    @contextlib.contextmanager
    def film(
        self, num_games: int = 1, index: int = 0
    ) -> Iterator[tuple[Iterator[np.ndarray], float]]:
        """Yields (pictures uint8 [H, W, 3] of more games of level `index`, pictures per second).

        Raises:
          ConfigError: the level cannot be rendered, or raises.
        """
        env, seed = self.config.environment, seed_of(self.config.run.seed, "video")
        with contextlib.closing(RenderedGame(env, self.spec, seed, index)) as game:
            steps = self._steps(game.environment, index, num_games, seed)
            yield (game.frame() for episode in steps if episode is None), game.fps

    def _steps(
        self,
        environment: BatchedEnvironment,
        index: int,
        num_games: int,
        seed: int,
    ) -> Iterator[Episode | None]:
        num_envs = len(environment.level_indices)
        policy = self.policy(num_envs, seed, self.config.evaluation.test_policy)
        level, state = self.spec.of_level(index), self.initial_state(num_envs)
        longest = games.longest_game(level)
        return games.play(
            policy, state, environment, num_envs, num_games, level.level_name, longest
        )


def load(given: Given, *, choose_device: bool) -> Player:
    """Returns the agent of a run or of an exported folder. Only a run's agent needs TensorFlow.

    Flags that are not given are the run's. Raises ConfigError: there is no agent, it does not fit
    the level, or one of its modules is not trusted.
    """
    if given["logdir"] is not None and Logdir(Path(given["logdir"])).is_exported:
        return load_exported(given)
    config, spec = resolve(as_trained(given))
    tensorflow_startup.import_tensorflow()  # takes seconds, so wrong flags are reported first
    if choose_device:
        tensorflow_startup.select_device(config.process.device)
    tensorflow_startup.start_xla()
    return load_checkpoint(config, spec)


def load_exported(given: Given) -> Player:
    """Returns the agent of the exported folder in --logdir; raises what `load` raises."""
    folder = Path(given["logdir"])
    about = exported.read(folder)
    flags = as_exported(given, about.flags)
    with same_folder():
        spec = provenance.with_offsets(suites.spec(flags.environment), about.level)
    agent = exported.ExportedAgent(folder, about, spec)
    named = {"agent_name": about.agent_name, "algorithm": about.algorithm}
    return Player(
        configs.replace(Config(), **{**flags.everything(), **named}),
        spec,
        folder / exported.MODEL,
        {"environment_frames": about.environment_frames},
        agent.interface.initial_state,
        agent.policy,
    )


def load_checkpoint(config: Config, spec: EnvironmentSpec) -> Player:
    """Returns the agent of a run, with the parameters of --checkpoint.

    Raises ConfigError: there is no complete checkpoint, or it is of another level or network.
    """
    from impala_tf.agents.agent import agent_here
    from impala_tf.agents.policy import compile_policy
    from impala_tf.checkpoint.checkpointer import Checkpointer
    from impala_tf.learner.policy_step import value_moments

    logdir = logdir_of(config)
    spec = provenance.keep_offsets(spec, provenance.read(logdir))
    agent, is_best = agent_here(config.agent, spec), config.evaluation.checkpoint == "best"
    trackables: dict[str, tf.Module] = {"agent": agent}
    moments = None
    normalizes = config.loss.value_normalization == "running" and not agent.has_q_values
    if normalizes and configs.algorithm(config.loss.algorithm).step is None:
        trackables["value_moments"] = moments = value_moments(agent)  # `PolicyStep` wrote it
    checkpointer = Checkpointer(logdir.best if is_best else logdir.checkpoints, trackables)
    signature = signature_of(config, spec)
    state = checkpointer.restore(
        lambda state: check_compatible(state["identity"], signature, config.run.logdir),
        partial=True,
    )
    if state is None or checkpointer.latest is None:
        which = "best checkpoint yet" if is_best else "checkpoint to test"
        raise ConfigError(f"--logdir={config.run.logdir}: holds no {which}")
    if moments is not None:  # the baseline must be in the unit of the rewards
        agent.policy_heads.unit.assign(moments.mean, moments.std)
    counted = {name: int(state["counters"][name]) for name in _COUNTED}
    return Player(
        config,
        spec,
        checkpointer.latest,
        {"wall_time_s": state["recorder"]["wall_time_s"], **counted},
        agent.initial_state,
        lambda num_envs, seed, choice: compile_policy(agent, spec, num_envs, seed, choice),
        agent,
    )
