"""A trained agent that plays, from a checkpoint or an exported folder."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from impala_tf import config as configs
from impala_tf.actor.actor import Environment
from impala_tf.agents.interface import Policy
from impala_tf.config import EnvironmentConfig, EvaluationConfig, Given
from impala_tf.environments import suites
from impala_tf.environments.suites import RenderedGame
from impala_tf.evaluation import exported, games
from impala_tf.logdir import Logdir
from impala_tf.processes import tensorflow_startup
from impala_tf.processes.common import resolve, same_folder, seed_of
from impala_tf.processes.trained_flags import as_exported, as_trained
from impala_tf.types import EnvironmentSpec, Episode, Nest

if TYPE_CHECKING:
    from impala_tf.processes.trained_agent import TrainedAgent


class Player(NamedTuple):
    """A trained agent, and how it acts.

    Attributes:
      flags: {flag: value} of all flags, including the run's.
      environment: the level and its protocol.
      evaluation: what --mode=test needs.
      spec: the level's specification.
      source: the checkpoint, or the model's file.
      environment_frames: the frames that it was trained for.
      is_exported: whether it is from an exported folder.
      initial_state: maps N to the core state of N environments before their first step.
      policy: maps (N, seed, how to choose actions) to the policy for N environments.
    """

    flags: Mapping[str, Any]
    environment: EnvironmentConfig
    evaluation: EvaluationConfig
    spec: EnvironmentSpec
    source: Path
    environment_frames: int
    is_exported: bool
    initial_state: Callable[[int], Nest]
    policy: Callable[[int, int, Literal["sampled", "greedy"]], Policy]

    @property
    def logdir(self) -> Logdir:
        """The run's folder, or the exported one."""
        return Logdir(Path(self.flags["logdir"]))

    def play(
        self,
        environment: Environment,
        env: EnvironmentConfig,
        index: int,
        num_envs: int,
        num_games: int,
        seed: int,
    ) -> Iterator[Episode | None]:
        """Plays whole games of level `index` of `env` in N environments; see `games.play`."""
        policy = self.policy(num_envs, seed, self.evaluation.test_policy)
        name, longest = suites.levels(env)[index].level_name, games.longest_game(env, index)
        state = self.initial_state(num_envs)
        return games.play(policy, state, environment, num_envs, num_games, name, longest)


def load(given: Given, *, choose_device: bool) -> Player:
    """Returns the agent of a run or of an exported folder. Only a run's agent needs TensorFlow.

    Args:
      given: flags of --mode=test; those that are not given are the run's.
      choose_device: whether to make TensorFlow compute on --device.

    Raises:
      ConfigError: there is no agent, it does not fit the level, or one of its modules is not
        trusted.
    """
    if given["logdir"] is not None and Logdir(Path(given["logdir"])).is_exported:
        return of_exported(given)
    config, spec = resolve(as_trained(given))
    tensorflow_startup.import_tensorflow()  # takes seconds, so wrong flags are reported first
    from impala_tf.processes import trained_agent

    if choose_device:
        tensorflow_startup.select_device(config.process.device)
    tensorflow_startup.start_xla()
    return of_checkpoint(trained_agent.load(config, spec))


def of_exported(given: Given) -> Player:
    """Returns the agent of the exported folder in --logdir; raises what `load` raises."""
    folder = Path(given["logdir"])
    about = exported.read(folder)
    flags = as_exported(given, about.flags)
    suites.keep_offsets(flags.environment, about.level.get("offsets", ()))
    with same_folder():
        spec = suites.spec(flags.environment)
    agent = exported.ExportedAgent(folder, about, spec)
    return Player(
        flags={
            **flags.everything(),
            "agent_name": about.agent_name,
            "algorithm": about.algorithm,
        },
        environment=flags.environment,
        evaluation=flags.evaluation,
        spec=spec,
        source=folder / exported.MODEL,
        environment_frames=about.environment_frames,
        is_exported=True,
        initial_state=agent.interface.initial_state,
        policy=agent.policy,
    )


def of_checkpoint(trained: TrainedAgent) -> Player:
    """Returns the agent of a run."""
    from impala_tf.agents.policy import compile_policy

    config, spec, agent = trained.config, trained.spec, trained.agent
    return Player(
        flags=configs.to_dict(config),
        environment=config.environment,
        evaluation=config.evaluation,
        spec=spec,
        source=trained.checkpoint,
        environment_frames=trained.environment_frames,
        is_exported=False,
        initial_state=agent.initial_state,
        policy=lambda num_envs, seed, choice: compile_policy(agent, spec, num_envs, seed, choice),
    )


@contextlib.contextmanager
def filmed(
    player: Player, num_games: int = 1, index: int = 0
) -> Iterator[tuple[Iterator[np.ndarray], float]]:
    """Yields (pictures uint8 [H, W, 3] of more games of level `index`, pictures per second).

    Raises:
      ConfigError: the level cannot be rendered, or raises.
    """
    seed = seed_of(player.flags["seed"], "video")
    with contextlib.closing(RenderedGame(player.environment, seed, index)) as game:
        played = player.play(game.environment, player.environment, index, 1, num_games, seed)
        yield (game.frame() for episode in played if episode is None), game.fps
