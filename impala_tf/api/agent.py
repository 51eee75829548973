"""A trained agent that acts: `load`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from gymnasium.spaces import Dict, Space
from gymnasium.vector import VectorEnv

from impala_tf.agents.interface import Policy
from impala_tf.config import AGENTS, ConfigError, Given, python_values
from impala_tf.environments import spaces, suites
from impala_tf.processes import players, trained_flags
from impala_tf.processes.common import seed_of
from impala_tf.processes.players import Player
from impala_tf.types import EnvOutput, Nest


class State(NamedTuple):
    """What an agent remembers between steps; pass it on unchanged."""

    core: Nest
    last_action: np.ndarray


class Agent:
    """A trained agent, from a run's checkpoint or an exported folder; made by `load`.

    Attributes:
      level_name: the name of its level.
      protocol: how the level is played, in words.
      checkpoint: the checkpoint or file with its parameters.
      environment_frames: the frames that it was trained for.
      observation_space: the observations that `act` takes: those of `make_env`, without the leading
        dimension.
      action_space: the actions that `act` returns.
    """

    def __init__(self, player: Player) -> None:
        self._player = player
        self.level_name = player.spec.level_name
        self.protocol = player.spec.protocol
        self.checkpoint: Path = player.source
        self.environment_frames = player.environment_frames
        env = self.make_env()
        self.observation_space = env.single_observation_space
        self.action_space = env.single_action_space
        env.close()
        self._shapes = _shapes(self.observation_space.sample())
        self._to_agent = spaces.observation_converter(self.observation_space)
        self._to_environment: Callable[[np.ndarray], Any] = spaces.action_converter(
            self.action_space
        )
        actions = player.spec.actions
        self._no_action = np.zeros((1, *actions.shape), actions.dtype)
        named = AGENTS.get(str(player.flags["agent_name"]))  # None for the user's own networks
        self._sees_reward = named is not None and named.observes_last_action_and_reward
        self._policies: dict[str, Policy] = {}

    def __repr__(self) -> str:
        return f"Agent({self.level_name!r}, {self.environment_frames:,} frames)"

    def act(
        self,
        observation: Any,
        state: State | None = None,
        *,
        reward: Any = None,
        greedy: bool = False,
    ) -> tuple[Any, State]:
        """Chooses an action.

        Args:
          observation: one observation in `observation_space`.
          state: the state that the last step returned; None at the beginning of an episode. On
            Atari, an agent with --terminal_on_life_loss (the default) also learned that an episode
            begins after a lost life (`info["lives"]` falls).
          reward: the reward of the last action; a number or an array with one, as `make_env` gives
            it. Agents that see it need it with every state: those whose names end in LSTMAgent, and
            SimpleConvNetAgent.
          greedy: whether to choose the most likely action, not to sample from the policy.

        Returns:
          An action in `action_space`, and the state for the next step.

        Raises:
          ValueError: the observation has another shape, other parts or a dtype that does not fit,
            `reward` is not a number, or the agent sees the reward and it is not given.
        """
        self._check(observation)
        last_reward = 0.0 if reward is None else np.asarray(reward).item()
        if reward is None and state is not None and self._sees_reward:
            raise ValueError(
                f"reward: {self._player.flags['agent_name']} sees the reward of its last action;"
                " give act(observation, state, reward=reward)"
            )
        batch = _batch_of(observation, self.observation_space)
        begins = state is None
        before = state or State(self._player.initial_state(1), self._no_action)
        flags = {"terminated": False, "truncated": False, "autoreset": begins}
        step = EnvOutput(
            reward=np.array([last_reward], np.float32),
            **{name: np.array([flag]) for name, flag in flags.items()},
            episode_start=np.array([begins]),
            observation=self._to_agent(batch),
            last_action=before.last_action,
        )
        answer, core = self._policy("greedy" if greedy else "sampled")(step, before.core)
        action = np.asarray(answer.action)
        return self._to_environment(action)[0], State(core, action)

    def make_env(self) -> VectorEnv[Any, Any, Any]:
        """Returns one environment of the level, as agents see it: a VectorEnv of length 1.

        A console game runs in a process of its own, which ends with the calling thread.
        """
        trained_flags.use_modules_of(self._player.logdir.path, self._player.environment)
        return suites.make(self._player.environment, 1, seed=_seed(self._player))

    def _check(self, observation: Any) -> None:
        shapes, expected = _shapes(observation), self._shapes
        if shapes != expected:
            raise ValueError(
                f"observation: has the shape {shapes}, but {self.level_name} has {expected}; give"
                " one observation, as `observation_space` has it"
            )

    def _policy(self, choice: Literal["sampled", "greedy"]) -> Policy:
        if choice not in self._policies:
            self._policies[choice] = self._player.policy(1, _seed(self._player), choice)
        return self._policies[choice]


def _batch_of(observation: Any, space: Space[Any], name: str = "observation") -> Any:
    """Returns an observation, or each of its parts, as an array [1, ...].

    Raises:
      ValueError: an image does not have integers.
    """
    if isinstance(space, Dict):
        return {
            part: _batch_of(observation[part], inner, f"observation[{part!r}]")
            for part, inner in space.spaces.items()
        }
    array = np.asarray(observation)
    if space.dtype == np.uint8 and array.ndim > 1:
        if array.dtype.kind not in "biu":
            raise ValueError(f"{name}: has the dtype {array.dtype}, but images must have uint8")
        array = array.astype(np.uint8, copy=False)
    return array[None]


def _shapes(observation: Any) -> Any:
    """Returns the shape of an observation, or {name: shape} of its parts."""
    if isinstance(observation, Mapping):
        return {name: np.shape(part) for name, part in observation.items()}
    return np.shape(observation)


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
        algorithm. Their code runs here.

    Raises:
      ConfigError: there is no agent, it learned several levels, or one of its modules is not
        trusted.
    """
    given = given_for(logdir, checkpoint, trust_level_module, {})
    player = players.load(given, choose_device=False)
    if len(player.spec.levels) > 1:
        raise ConfigError(f"--logdir={logdir}: learned several levels; play them with --mode=test")
    return Agent(player)


def given_for(
    logdir: str | os.PathLike[str], checkpoint: str, trust: bool, flags: dict[str, Any]
) -> Given:
    """Returns the flags of --mode=test."""
    of_test = {"mode": "test", "logdir": logdir, "checkpoint": checkpoint}
    return python_values.given(dict(**flags, **of_test, trust_level_module=trust))


def _seed(player: Player) -> int:
    return seed_of(player.flags["seed"], "act")
