"""A trained agent that acts: `load`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import tensorflow as tf
from gymnasium.vector import VectorEnv

from impala_tf.agents.policy import Policy, compile_policy
from impala_tf.config import Given, python_values
from impala_tf.environments import spaces, suites
from impala_tf.processes import trained_agent
from impala_tf.processes.common import resolve, seed_of
from impala_tf.processes.trained_agent import TrainedAgent
from impala_tf.types import EnvOutput, Nest


class State(NamedTuple):
    """What an agent remembers from one step to the next; pass it on unseen."""

    core: Nest
    last_action: np.ndarray


class Agent:
    """The agent of a run, with the parameters of a checkpoint; `load` makes it.

    Attributes:
      level_name: of its level.
      protocol: how the level is played, in words.
      checkpoint: where its parameters are from.
      environment_frames: that it had been trained for.
      observation_space: what `act` takes: what `make_env` shows, without the leading dimension.
      action_space: of what `act` returns.
    """

    def __init__(self, trained: TrainedAgent) -> None:
        self._trained = trained
        self.level_name = trained.spec.level_name
        self.protocol = trained.spec.protocol
        self.checkpoint: Path = trained.checkpoint
        self.environment_frames = trained.environment_frames
        env = self.make_env()
        self.observation_space = env.single_observation_space
        self.action_space = env.single_action_space
        env.close()
        self._to_agent = spaces.observation_converter(self.observation_space)
        self._to_environment: Callable[[np.ndarray], Any] = spaces.action_converter(
            self.action_space
        )
        actions = trained.spec.actions
        self._no_action = np.zeros((1, *actions.shape), actions.dtype)
        self._policies: dict[str, Policy] = {}

    def __repr__(self) -> str:
        return f"Agent({self.level_name!r}, {self.environment_frames:,} frames)"

    def act(
        self,
        observation: Any,
        state: State | None = None,
        *,
        reward: float = 0.0,
        greedy: bool = False,
    ) -> tuple[Any, State]:
        """Chooses an action.

        Args:
          observation: one observation, as `observation_space` has it.
          state: what the step before returned; None where an episode begins.
          reward: of the last action; only agents that observe it look at it.
          greedy: the most likely action, in place of one that is drawn from the policy.

        Returns:
          an action of `action_space`, and the state for the next step.
        """
        batch = tf.nest.map_structure(lambda part: np.asarray(part)[None], observation)
        begins = state is None
        before = self._initial() if state is None else state
        flags = {"terminated": False, "truncated": False, "autoreset": begins}
        step = EnvOutput(
            reward=np.array([reward], np.float32),
            **{name: np.array([flag]) for name, flag in flags.items()},
            episode_start=np.array([begins]),
            observation=self._to_agent(batch),
            last_action=before.last_action,
        )
        answer, core = self._policy("greedy" if greedy else "sampled")(step, before.core)
        action = answer.action.numpy()
        return self._to_environment(action)[0], State(core, action)

    def make_env(self) -> VectorEnv[Any, Any, Any]:
        """Returns one environment of the level, as agents see it: a vector of length 1."""
        return suites.make(self._trained.config.environment, 1, seed=_seed(self._trained))

    def _initial(self) -> State:
        return State(self._trained.agent.initial_state(1), self._no_action)

    def _policy(self, choice: Literal["sampled", "greedy"]) -> Policy:
        if choice not in self._policies:
            trained = self._trained
            self._policies[choice] = compile_policy(
                trained.agent, trained.spec, 1, _seed(trained), choice
            )
        return self._policies[choice]


def load(
    logdir: str | os.PathLike[str],
    *,
    checkpoint: Literal["newest", "best"] = "newest",
    trust_level_module: bool = False,
) -> Agent:
    """Returns the agent of a run.

    Args:
      logdir: of the run.
      checkpoint: best: the one that was written at the highest mean return.
      trust_level_module: whether modules may be imported that the run names for its level, torso or
        algorithm. Their code runs here.

    Raises:
      ConfigError: there is no run or no checkpoint, or a module of it is not trusted.
    """
    given = given_for(logdir, checkpoint, trust_level_module, {})
    config, spec = resolve(trained_agent.as_trained(given))
    return Agent(trained_agent.load(config, spec))


def given_for(
    logdir: str | os.PathLike[str], checkpoint: str, trust: bool, flags: dict[str, Any]
) -> Given:
    """Returns the flags of --mode=test."""
    of_test = {"mode": "test", "logdir": logdir, "checkpoint": checkpoint}
    return python_values.given({**flags, **of_test, "trust_level_module": trust})


def _seed(trained: TrainedAgent) -> int:
    return seed_of(trained.config.run.seed, "act")
