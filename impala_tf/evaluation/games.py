"""Plays whole games with a trained agent, and summarises them for evaluation.json and tables."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from rich.table import Table

from impala_tf.actor.actor import Environment
from impala_tf.agents.interface import Policy
from impala_tf.config import ConfigError, EnvironmentConfig
from impala_tf.environments import suites
from impala_tf.monitoring.render import plain_table
from impala_tf.types import EnvironmentSpec, Episode, Nest

LONGEST_GAME = 100_000
"""Agent steps after which a game is cut, unless its level has a longer time limit."""

Summary = Mapping[str, Any]
"""The result of `summary`."""


class CutGame(Episode):
    """A game that did not end by itself, so that it was cut: its return and length so far."""


def longest_game(level: EnvironmentSpec) -> int:
    """Returns after how many agent steps a game of a level is cut.

    It is at least the level's own time limit, which is part of its protocol.
    """
    return max(LONGEST_GAME, level.time_limit)


def play(
    policy: Policy,
    initial_state: Nest,
    environment: Environment,
    num_envs: int,
    num_episodes: int,
    level_name: str,
    longest: int = LONGEST_GAME,
) -> Iterator[Episode | None]:
    """Plays `num_episodes` whole games in N environments; yields None for each observation.

    It yields a finished game after the None of its final observation, so that a video shows the
    whole game. Each environment plays a fixed number of games, because taking the games that finish
    first would favour short ones.

    A game that has not ended after `longest` agent steps is yielded as a CutGame. Then what is left
    of it does not count. Environments cannot be reset one by one, so all of them begin new games
    then, and those that they were playing do not count.

    Raises:
      ConfigError: a game's return is not finite; the message names the level.
    """
    games_left = np.full(num_envs, num_episodes // num_envs)
    games_left[: num_episodes % num_envs] += 1

    def counted(episode: Episode) -> Episode:
        if not math.isfinite(episode.episode_return):
            after = f"after {num_episodes - games_left.sum()} of {num_episodes} games"
            problem = f"a game had NaN or infinite rewards {after}"
            raise ConfigError(f"--level_name={level_name}: {problem}")
        games_left[episode.environment] -= 1
        return episode

    while games_left.any():
        env_output, core_state = environment.reset(), initial_state
        returns, lengths = np.zeros(num_envs), np.zeros(num_envs, np.int64)
        while True:
            yield None
            returns += env_output.reward
            lengths += ~env_output.autoreset
            for episode in environment.pop_episodes():
                n = episode.environment
                returns[n] = lengths[n] = 0
                if games_left[n] > 0:
                    yield counted(episode)
            cut = np.flatnonzero((lengths >= longest) & (games_left > 0))
            for n in cut:
                yield counted(CutGame(float(returns[n]), int(lengths[n]), int(n)))
            if len(cut) or not games_left.any():
                break
            answer, core_state = policy(env_output, core_state)
            env_output = environment.step(np.asarray(answer.action))


def summary(episodes: Sequence[Episode], level: EnvironmentConfig | None = None) -> dict[str, Any]:
    """Returns statistics of the games' unclipped returns (sample standard deviation), JSON-able.

    It has "games_cut" if games were cut, "normalized_mean" if the level has published scores, and
    "level_name" if a level is given.

    Args:
      episodes: the games, at least one.
      level: the flags of what was played.
    """
    returns = [episode.episode_return for episode in episodes]
    mean = statistics.fmean(returns)
    cut = sum(isinstance(episode, CutGame) for episode in episodes)
    normalized = None if level is None else suites.normalized(level, mean)
    return {
        **({} if level is None else {"level_name": level.level_name}),
        "num_episodes": len(returns),
        "mean": mean,
        "median": statistics.median(returns),
        "std": statistics.stdev(returns) if len(returns) > 1 else 0.0,
        "min": min(returns),
        "max": max(returns),
        "episode_returns": returns,
        "episode_lengths": [episode.episode_length for episode in episodes],
        **({"games_cut": cut} if cut else {}),
        **({} if normalized is None else {"normalized_mean": normalized}),
    }


def cut_note(played: Summary) -> str:
    """Returns how many games of a summary were cut, and what helps; '' if none were."""
    cut = played.get("games_cut", 0)
    if not cut:
        return ""
    return (
        f"{cut} of {played['num_episodes']} games had not ended after"
        f" {max(played['episode_lengths']):,} steps and {'was' if cut == 1 else 'were'} cut there;"
        " the level needs a time limit (`max_episode_steps`)"
    )


def over_levels(rows: Sequence[Summary]) -> dict[str, Any]:
    """Returns the results of an agent on several levels, and over all of them, JSON-able.

    Args:
      rows: the result on each level: its "level_name", the `summary` of its games, its
        "normalized_mean" if scores are published, and, if it has generated levels that training did
        not use, "unseen", likewise.

    Returns:
      {"levels": rows, and, if all levels have published scores, "normalized": {"mean", "median",
      "capped_mean", "capped_median"}, and "normalized_unseen", likewise for unseen ones}. Capped
      scores count each level as at most 1.
    """
    report = {
        "levels": list(rows),
        "normalized": _normalized(rows),
        "normalized_unseen": _normalized([row.get("unseen", {}) for row in rows]),
    }
    return {name: value for name, value in report.items() if value is not None}


def _normalized(rows: Sequence[Summary]) -> dict[str, float] | None:
    """Returns normalised scores over all levels; None if a level has no published score."""
    scores = [row["normalized_mean"] for row in rows if "normalized_mean" in row]
    if len(scores) < len(rows):
        return None
    capped = [min(score, 1.0) for score in scores]
    return {
        "mean": statistics.fmean(scores),
        "median": statistics.median(scores),
        "capped_mean": statistics.fmean(capped),
        "capped_median": statistics.median(capped),
    }


def line(row: Summary, policy: str) -> str:
    """Returns the result of a level in one line; `policy` is how actions were chosen."""
    count = row["num_episodes"]
    text = f"{row['level_name']}: {count} game{'s' * (count > 1)}, {policy} actions: " + ", ".join(
        f"{name} {row[name]:.2f}" for name in ("mean", "median", "std", "min", "max")
    )
    return text + (f", normalised {row['normalized_mean']:.3f}" if "normalized_mean" in row else "")


def table(report: Summary) -> Table:
    """Returns the result of `over_levels` as a table, with separate rows for unseen levels."""
    table = plain_table("level", "games", "mean return", "median", "normalised")
    for row in report["levels"]:
        parts = {"": row, ", unseen levels": row.get("unseen")}
        for where, part in parts.items():
            if part is not None:
                normalized = f"{part['normalized_mean']:.3f}" if "normalized_mean" in part else ""
                means = f"{part['mean']:.2f}", f"{part['median']:.2f}"
                name = f"{row['level_name']}{where}"
                table.add_row(name, str(part["num_episodes"]), *means, normalized)
    for key, where in (("normalized", ""), ("normalized_unseen", ", unseen levels")):
        for name, value in report.get(key, {}).items():
            title = f"{name.replace('_', ' ')} of all{where}"
            table.add_row(title, "", "", "", f"{value:.3f}")
    return table
