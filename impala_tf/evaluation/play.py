"""Plays whole games with a trained agent and summarises their returns."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np

from impala_tf.agents.policy import Policy
from impala_tf.types import EnvOutput, Episode, Nest


class Environment(Protocol):
    """N environments (see `environments.batched.BatchedEnvironment`)."""

    def reset(self) -> EnvOutput: ...  # noqa: D102
    def step(self, actions: np.ndarray) -> EnvOutput: ...  # noqa: D102
    def pop_episodes(self) -> list[Episode]: ...  # noqa: D102


def play(
    policy: Policy, initial_state: Nest, environment: Environment, num_envs: int, num_episodes: int
) -> Iterator[Episode | None]:
    """Plays `num_episodes` whole games in N environments; yields None for each observation.

    A finished game is yielded after the None of its final observation, so that a video shows the
    whole game. Each environment plays a fixed number of games: taking the games that finish first
    would favour short ones.
    """
    games_left = np.full(num_envs, num_episodes // num_envs)
    games_left[: num_episodes % num_envs] += 1
    env_output, core_state = environment.reset(), initial_state
    while True:
        yield None
        for episode in environment.pop_episodes():
            if games_left[episode.environment] > 0:
                games_left[episode.environment] -= 1
                yield episode
        if not games_left.any():
            return
        answer, core_state = policy(env_output, core_state)
        env_output = environment.step(answer.action.numpy())


def summary(episodes: list[Episode]) -> dict[str, Any]:
    """Returns statistics of the games' unclipped returns (sample standard deviation), JSON-able."""
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
