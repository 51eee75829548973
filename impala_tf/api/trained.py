"""Trained agents: `load` returns one that acts, `evaluate` plays whole games with one."""

from __future__ import annotations

import dataclasses
import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

import gymnasium
import numpy as np
from gymnasium import Space

from impala_tf.api import objects
from impala_tf.config import AGENTS, ConfigError, Given, python_values
from impala_tf.environments import spaces, suites
from impala_tf.environments.batched import LIFE_LOST
from impala_tf.evaluation import games
from impala_tf.processes import evaluate_main, players, trained_flags
from impala_tf.processes.common import seed_of
from impala_tf.processes.players import Player
from impala_tf.types import EnvOutput

if TYPE_CHECKING:
    from impala_tf.api.arguments import EvaluateArguments


class Agent:
    """A trained agent, from a run's checkpoint or an exported folder; made by `load`.

    Attributes:
      level_name: the name of its level.
      protocol: how the level is played, in words.
      checkpoint: the checkpoint or file with its parameters.
      environment_frames: the frames that it was trained for.
      observation_space: the level's own observations, which `act` takes.
      action_space: the level's own actions, which `act` returns.
    """

    def __init__(self, player: Player) -> None:
        self._player = player
        self.level_name: str = player.spec.level_name
        self.protocol: str = player.spec.protocol
        self.checkpoint: Path = player.source
        self.environment_frames: int = player.environment_frames
        self._level = level = self._make_level()
        level.env.close()
        self.observation_space: gymnasium.Space[Any] = level.env.observation_space
        self.action_space: gymnasium.Space[Any] = level.env.action_space
        self._to_environment = spaces.action_converter(self.action_space)
        actions = player.spec.actions
        self._no_action = np.zeros((1, *actions.shape), actions.dtype)
        self._name = player.config.agent.agent_name
        named = AGENTS.get(self._name)  # None for the user's own networks
        self._sees_reward = named is not None and named.observes_last_action_and_reward
        self._policy = functools.cache(functools.partial(player.policy, 1, _seed(player)))
        self.reset()

    def __repr__(self) -> str:
        return f"Agent({self.level_name!r}, {self.environment_frames:,} frames)"

    def reset(self) -> None:
        """Forgets the game so far: another one begins. Environments of `make_env` call this."""
        self._begins, self._life_lost = True, False
        self._reward: float | None = 0.0
        self._core = self._player.initial_state(1)
        self._last_action = self._no_action

    def act(self, observation: Any, *, reward: Any = None, greedy: bool = False) -> Any:
        """Chooses an action, and remembers what the network's memory needs for the next one.

        In an environment of your own, call `reset` where a game begins; that of `make_env` does.

        Args:
          observation: one observation in `observation_space`.
          reward: the reward of the last action; a number or an array with one. Agents that see it
            need it in an environment of your own: those whose names end in LSTMAgent, and
            SimpleConvNetAgent.
          greedy: whether to choose the most likely action, not to sample from the policy.

        Returns:
          An action in `action_space`.

        Raises:
          ValueError: the observation has another shape, other parts or a dtype that does not fit,
            `reward` is not a number, or the agent sees the reward and it is not given.
        """
        self._check(observation)
        if reward is not None:
            self._reward = float(np.asarray(reward).item())
        if self._reward is None and self._sees_reward:
            raise ValueError(
                f"reward: {self._name} sees the reward of its last action; play in"
                " the environment of agent.make_env(), or give act(..., reward=reward)"
            )
        step = EnvOutput(
            reward=np.array([self._reward or 0.0], np.float32),
            terminated=np.array([self._life_lost]),
            truncated=np.array([False]),
            autoreset=np.array([self._begins]),
            episode_start=np.array([self._begins or self._life_lost]),
            observation=self._level.to_agent(observation),
            last_action=self._last_action,
        )
        policy = self._policy("greedy" if greedy else "sampled")
        answer, self._core = policy(step, self._core)
        self._last_action = np.asarray(answer.action)
        self._begins = self._life_lost = False
        self._reward = None
        return self._to_environment(self._last_action)[0]

    def make_env(self) -> gymnasium.Env[Any, Any]:
        """Returns an environment of the level, which tells this agent of games, rewards and lives.

        A console game runs in a process of its own, which ends with the calling thread.
        """
        level = self._make_level()
        return _Followed(level.env, level.repeats, self)

    def _make_level(self) -> suites.Level:
        environment = self._player.config.environment
        trained_flags.use_modules_of(self._player.logdir.path, suites.modules(environment))
        return suites.make_single(environment, self._player.spec, _seed(self._player))

    def _check(self, observation: Any) -> None:
        shapes, expected = (
            _shapes(self.observation_space, each)
            for each in (observation, self.observation_space.sample())
        )
        if shapes != expected:
            raise ValueError(
                f"observation: has the shape {shapes}, but {self.level_name} has {expected}; give"
                " one observation, as `observation_space` has it"
            )


class _Followed(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Tells an agent what it sees besides observations."""

    def __init__(self, env: gymnasium.Env[Any, Any], repeats: int, agent: Agent) -> None:
        super().__init__(env)
        self._repeats, self._agent = repeats, agent

    def reset(self, **settings: Any) -> tuple[Any, dict[str, Any]]:
        self._agent.reset()
        return self.env.reset(**settings)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        total = 0.0
        for _ in range(self._repeats):
            observation, reward, terminated, truncated, info = self.env.step(action)
            total += float(np.asarray(reward).item())
            if terminated or truncated:
                break
        self._agent._reward = total
        self._agent._life_lost = bool(info.get(LIFE_LOST, False))
        return observation, total, terminated, truncated, info


def _shapes(space: Space[Any], observation: Any) -> Any:
    """Returns the shape of an observation, or {name: shape} of its parts.

    Raises:
      ValueError: a part is missing, or an image does not have integers.
    """
    try:
        parts = list(spaces.named_parts(space, observation))
    except (IndexError, KeyError, TypeError) as error:
        raise ValueError(f"observation: must fit {space}, but lacks {error}") from None
    for name, part, value in parts:
        is_image = part.dtype == np.uint8 and len(part.shape or ()) > 1
        if is_image and (dtype := np.asarray(value).dtype).kind not in "biu":
            where = f"observation[{name!r}]" if name else "observation"
            raise ValueError(f"{where}: has the dtype {dtype}, but images must have uint8")
    shapes = {name: np.shape(value) for name, _, value in parts}
    return shapes.get("", shapes)


@python_values.errors_name_arguments()
def load(
    logdir: str | os.PathLike[str],
    *,
    checkpoint: Literal["newest", "best"] = "newest",
    trust_level_module: bool = False,
) -> Agent:
    """Returns the agent of a run, or of a folder that `impala export --to=FOLDER` wrote.

    An agent from such a folder plays without TensorFlow.

    Args:
      logdir: the run's logdir, or the folder.
      checkpoint: for a run, which checkpoint. best: the one with the highest mean return.
      trust_level_module: whether to import modules that the run names for its level, torso or
        algorithm. Their code runs here. A run that this process trained is trusted.

    Raises:
      ConfigError: there is no agent, it learned several levels, or one of its modules is not
        trusted.
    """
    given = _given_for(logdir, checkpoint, trust_level_module)
    return Agent(_of_one_level(players.load(given, choose_device=False)))


def _given_for(logdir: str | os.PathLike[str], checkpoint: str, trust: bool, **flags: Any) -> Given:
    """Returns the flags of `impala test`."""
    of_test = {"mode": "test", "logdir": logdir, "checkpoint": checkpoint}
    trust = trust or objects.is_own(Path(logdir))
    return python_values.given(dict(**flags, **of_test, trust_level_module=trust))


def _of_one_level(player: Player) -> Player:
    if len(player.spec.levels) > 1:
        raise ConfigError(
            f"--logdir={player.logdir.path}: learned several levels; play them with `impala test`"
        )
    return player


def _seed(player: Player) -> int:
    return seed_of(player.config.run.seed, "act")


@dataclasses.dataclass(frozen=True, repr=False)
class Evaluation:
    """The results of whole games, with unclipped returns."""

    mean: float
    """The mean return."""
    median: float
    """The median return."""
    std: float
    """The standard deviation of the sample."""
    returns: tuple[float, ...]
    """The return of each game."""
    lengths: tuple[int, ...]
    """In agent steps."""
    normalized_mean: float | None
    """The mean, scaled so that the level's published range is 0 to 1; None if none is published."""
    protocol: str
    """How the level was played, in words."""
    checkpoint: str
    """The checkpoint or file that played."""
    environment_frames: int
    """The frames that it was trained for."""
    details: dict[str, Any]
    """The content of evaluation.json, such as games on unseen levels."""

    def __repr__(self) -> str:
        played = f"{len(self.returns)} game{'s' * (len(self.returns) > 1)}"
        level = self.details["level_name"]
        return f"Evaluation({level!r}, mean {self.mean:.2f}, std {self.std:.2f}, {played})"


@python_values.errors_name_arguments()
def evaluate(
    logdir: str | os.PathLike[str],
    num_episodes: int = 10,
    *,
    policy: Literal["sampled", "greedy"] = "sampled",
    checkpoint: Literal["newest", "best"] = "newest",
    trust_level_module: bool = False,
    **flags: Unpack[EvaluateArguments],
) -> Evaluation:
    """Plays whole games with the agent of a run, and writes evaluation.json there.

    A game that does not end is cut after 100,000 agent steps, or at the level's time limit if that
    is longer; a line says so, and `details` has "games_cut".
    The agent of an exported folder plays without TensorFlow, and no evaluation.json is written.

    Args:
      logdir: the run's logdir, or an exported folder.
      num_episodes: how many games to play.
      policy: greedy: the most likely action; sampled: drawn from the policy, as in training.
      checkpoint: for a run, which checkpoint. best: the one with the highest mean return.
      trust_level_module: whether to import modules that the run names. Their code runs here.
      flags: other flags of `impala test`, such as `seed=2`, or `video=True`, which writes a video
        to the logdir.

    Raises:
      ConfigError: there is no agent, it learned several levels (use `impala test`), one of its
        modules is not trusted, or a flag is wrong.
    """
    of_test = dict(test_num_episodes=num_episodes, test_policy=policy, **flags)
    given = _given_for(logdir, checkpoint, trust_level_module, **of_test)
    player = _of_one_level(evaluate_main.load(given))
    result = evaluate_main.evaluate(player)
    if note := games.cut_note(result):
        print(f"{result['level_name']}: {note}")
    evaluate_main.write(player, result)
    same = ("mean", "median", "std", "protocol", "checkpoint", "environment_frames")
    return Evaluation(
        returns=tuple(result["episode_returns"]),
        lengths=tuple(result["episode_lengths"]),
        normalized_mean=result.get("normalized_mean"),
        details=result,
        **{name: result[name] for name in same},
    )
