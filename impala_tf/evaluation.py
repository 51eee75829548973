"""Plays whole games with a trained agent and says how they went."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from impala_tf import agents
from impala_tf.actor import as_seen, step_signature
from impala_tf.types import EnvironmentSpec, EnvOutput, Episode, Nest

Act = Callable[[EnvOutput, Nest], tuple[tf.Tensor, Nest]]


class Stream(Protocol):
    """N environments (see `environments.stream.EnvStream`)."""

    def reset(self) -> EnvOutput: ...  # noqa: D102
    def step(self, actions: np.ndarray) -> EnvOutput: ...  # noqa: D102


def compile_policy(
    agent: agents.Agent, spec: EnvironmentSpec, num_envs: int, policy: str, seed: int
) -> Act:
    """Returns the compiled policy: (step, core state) -> (actions, core state)."""
    generator = tf.random.Generator.from_seed(seed)

    @tf.function(input_signature=step_signature(agent, spec, num_envs))
    def act(env_output: EnvOutput, core_state: Nest) -> tuple[tf.Tensor, Nest]:
        outputs, core_state = agent.step(as_seen(env_output, spec), core_state)
        if policy == "greedy":
            return agents.greedy_actions(outputs.policy_logits), core_state
        return agents.sample_actions(outputs.policy_logits, generator), core_state

    return act


def play(
    act: Act, initial_state: Nest, stream: Stream, num_envs: int, num_episodes: int
) -> Iterator[Episode | None]:
    """Plays `num_episodes` whole games in N environments; yields None before each step.

    A game that has ended is yielded once its environment has been reset, so that whoever films it
    sees all of it: its first observation and its final one too. Each environment plays its share to
    the end: taking whichever games end first would prefer the short ones.
    """
    share = np.full(num_envs, num_episodes // num_envs)
    share[: num_episodes % num_envs] += 1
    returns, lengths = np.zeros(num_envs), np.zeros(num_envs, np.int64)
    env_output, core_state = stream.reset(), initial_state
    while share.any():
        yield None
        actions, core_state = act(env_output, core_state)
        env_output = stream.step(actions.numpy())
        ended = env_output.autoreset
        for n in np.flatnonzero(ended & (share > 0)):
            share[n] -= 1
            yield Episode(float(returns[n]), int(lengths[n]))
        returns = np.where(ended, 0.0, returns + env_output.reward)
        lengths = np.where(ended, 0, lengths + 1)


def summary(episodes: list[Episode]) -> dict[str, Any]:
    """Returns statistics of the games' unclipped returns (std: of the sample), JSON-able."""
    returns = [episode.episode_return for episode in episodes]
    return {
        "num_episodes": len(returns),
        "mean": statistics.fmean(returns),
        "median": statistics.median(returns),
        "std": statistics.stdev(returns) if len(returns) > 1 else 0.0,
        "min": min(returns),
        "max": max(returns),
        "episode_returns": returns,
        "episode_lengths": [episode.episode_length for episode in episodes],
    }
