"""Plays whole games with a trained agent, and summarises them for evaluation.json and tables."""

from __future__ import annotations

import contextlib
import math
import statistics
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

import impala_tf
from impala_tf.actor.actor import Environment
from impala_tf.agents.interface import Policy
from impala_tf.config import ConfigError, EnvironmentConfig
from impala_tf.environments import suites
from impala_tf.environments.results import BrokenEnvironmentError, LevelError
from impala_tf.monitoring.render import plain_table
from impala_tf.types import Episode, Nest

_PACKAGE = str(Path(impala_tf.__file__).parent)
_INSTALLED = [sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")]
# Prefixes of files that are not the user's own code. "<frozen ...>" is not a file.
_OF_OTHERS = (*(f"{folder}/" for folder in (_PACKAGE, *_INSTALLED)), "<")

LONGEST_GAME = 100_000
"""Agent steps after which a game is cut, unless its level has a longer time limit."""

Summary = Mapping[str, Any]
"""The result of `summary`."""


class CutGame(Episode):
    """A game that did not end by itself, so that it was cut: its return and length so far."""


def longest_game(env: EnvironmentConfig, index: int = 0) -> int:
    """Returns after how many agent steps a game of level `index` is cut.

    It is at least the level's own time limit, which is part of its protocol.
    """
    return max(LONGEST_GAME, suites.time_limit(env, index))


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
    of it does not count. Environments cannot be reset one by one, so one whose game was cut plays
    its next game when that has ended, or when all others are done or have been cut, too.

    Raises:
      ConfigError: the level raised, or a game's return is not finite; the message names the level.
    """
    games_left = np.full(num_envs, num_episodes // num_envs)
    games_left[: num_episodes % num_envs] += 1

    def after() -> str:
        return f"after {num_episodes - games_left.sum()} of {num_episodes} games"

    def counted(episode: Episode) -> Episode:
        if not math.isfinite(episode.episode_return):
            problem = f"a game had NaN or infinite rewards {after()}"
            raise ConfigError(f"--level_name={level_name}: {problem}")
        games_left[episode.environment] -= 1
        return episode

    while games_left.any():
        with errors_named(level_name, after):
            env_output, core_state = environment.reset(), initial_state
        returns, lengths = np.zeros(num_envs), np.zeros(num_envs, np.int64)
        was_cut = np.zeros(num_envs, np.bool_)
        while True:
            yield None
            returns += env_output.reward
            lengths += ~env_output.autoreset
            for episode in environment.pop_episodes():
                n = episode.environment
                returns[n] = lengths[n] = 0
                if games_left[n] > 0 and not was_cut[n]:
                    yield counted(episode)
                was_cut[n] = False
            for n in np.flatnonzero((lengths >= longest) & (games_left > 0) & ~was_cut):
                was_cut[n] = True
                yield counted(CutGame(float(returns[n]), int(lengths[n]), int(n)))
            if was_cut[games_left > 0].all():
                break
            answer, core_state = policy(env_output, core_state)
            with errors_named(level_name, after):
                env_output = environment.step(np.asarray(answer.action))


@contextlib.contextmanager
def errors_named(level_name: str, after: Callable[[], str]) -> Iterator[None]:
    """Converts what a level's code raises to a ConfigError that says when.

    Args:
      level_name: the level's name.
      after: returns the time, in words, such as "after 3 of 10 games".
    """
    try:
        yield
    except ConfigError:
        raise
    except (LevelError, BrokenEnvironmentError) as error:
        raise ConfigError(f"--level_name={error} {after()}") from error
    except Exception as error:
        raised = f"{type(error).__name__}: {error}{_place(error)}"
        raise ConfigError(f"--level_name={level_name}: raised {raised} {after()}") from error


def _place(error: Exception) -> str:
    """Returns the innermost place in the user's own code from which an error came; '' if none."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_OF_OTHERS)]
    return f" at {Path(own[-1].filename).name}:{own[-1].lineno}" if own else ""


def summary(episodes: list[Episode]) -> dict[str, Any]:
    """Returns statistics of the games' unclipped returns (sample standard deviation), JSON-able.

    Only if games were cut, it has "games_cut", their number.
    """
    returns = [episode.episode_return for episode in episodes]
    cut = sum(isinstance(episode, CutGame) for episode in episodes)
    return {
        "num_episodes": len(returns),
        "mean": statistics.fmean(returns),
        "median": statistics.median(returns),
        "std": statistics.stdev(returns) if len(returns) > 1 else 0.0,
        "min": min(returns),
        "max": max(returns),
        "episode_returns": returns,
        "episode_lengths": [episode.episode_length for episode in episodes],
        **({"games_cut": cut} if cut else {}),
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


def with_normalized(env: EnvironmentConfig, played: Summary) -> dict[str, Any]:
    """Returns a summary, with "normalized_mean" if the level's published range is known."""
    normalized = suites.normalized(env, played["mean"])
    return {**played} if normalized is None else {**played, "normalized_mean": normalized}


def level_sets(env: EnvironmentConfig) -> dict[str, EnvironmentConfig]:
    """Returns the generated levels to evaluate on: "train", and "test" if there are unseen ones.

    Args:
      env: the flags of the training.
    """
    unseen = suites.suite_of(env).unseen(env)
    return {"train": env, "test": unseen} if unseen else {"train": env}


def generalization(
    sets: Mapping[str, EnvironmentConfig], summaries: Mapping[str, Summary]
) -> Summary:
    """Returns how much worse an agent plays levels that it was not trained on, JSON-able.

    Args:
      sets: the levels, as `level_sets` returns them, including "test".
      summaries: the summary of the games on each set.

    Returns:
      {"train": summary, "test": summary, "gap", "normalized_gap"}. The summaries also have levels
      (a text) and normalized_mean; the gaps are the mean of train minus that of test.
    """
    rows = {
        name: {
            "levels": suites.suite_of(env).level_range(env),
            **with_normalized(env, summaries[name]),
        }
        for name, env in sets.items()
    }
    train, test = rows["train"], rows["test"]
    gaps = {
        "gap": train["mean"] - test["mean"],
        "normalized_gap": train["normalized_mean"] - test["normalized_mean"],
    }
    return {**rows, **gaps}


def generalization_table(report: Summary) -> Table:
    """Returns the result of `generalization` as a table: a row for each set, and the gap."""
    table = plain_table("", "levels", "games", "mean return", "normalised")
    for name in ("train", "test"):
        row = report[name]
        means = (f"{row['mean']:.2f}", f"{row['normalized_mean']:.3f}")
        table.add_row(name, row["levels"], str(row["num_episodes"]), *means)
    table.add_row("gap", "", "", f"{report['gap']:.2f}", f"{report['normalized_gap']:.3f}")
    return table


def several_levels(
    levels: Sequence[EnvironmentConfig],
    summaries: Sequence[Summary],
    unseen: Sequence[Summary | None] | None = None,
) -> dict[str, Any]:
    """Returns the results of an agent on several levels, and over all of them, JSON-able.

    Args:
      levels: the flags of each level.
      summaries: the summary of the games on each level.
      unseen: likewise, on generated levels that training did not use; None: there are none.

    Returns:
      {"levels": [{"level_name", "normalized_mean" if published, "unseen" if any: its summary,
      ...}], and, if all levels have published scores, "normalized": {"mean", "median",
      "capped_mean", "capped_median"}, and "normalized_unseen", likewise for unseen ones}. Capped
      scores count each level as at most 1.
    """
    rows = [
        {"level_name": level.level_name, **with_normalized(level, played)}
        for level, played in zip(levels, summaries, strict=True)
    ]
    others: list[dict[str, Any]] = []
    for row, level, played in zip(rows, levels, unseen or [None] * len(rows), strict=True):
        if played is not None:
            others.append(with_normalized(level, played))
            row["unseen"] = others[-1]
    report = {
        "levels": rows,
        "normalized": _over_levels(rows),
        "normalized_unseen": _over_levels(others) if len(others) == len(rows) else None,
    }
    return {name: value for name, value in report.items() if value is not None}


def _over_levels(rows: Sequence[Summary]) -> dict[str, float] | None:
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


def several_levels_table(report: dict[str, Any]) -> Table:
    """Returns the result of `several_levels` as a table, with separate rows for unseen levels."""
    table = Table(box=None)
    table.add_column("level")
    for name in ("games", "mean return", "median", "normalised"):
        table.add_column(name, justify="right")
    for row in report["levels"]:
        table.add_row(row["level_name"], *_cells(row))
        if "unseen" in row:
            table.add_row(f"{row['level_name']}, unseen levels", *_cells(row["unseen"]))
    for key, where in (("normalized", ""), ("normalized_unseen", ", unseen levels")):
        for name, value in report.get(key, {}).items():
            title = f"{name.replace('_', ' ')} of all{where}"
            table.add_row(title, "", "", "", f"{value:.3f}")
    return table


def _cells(row: Summary) -> list[str]:
    normalized = row.get("normalized_mean")
    return [
        str(row["num_episodes"]),
        f"{row['mean']:.2f}",
        f"{row['median']:.2f}",
        "" if normalized is None else f"{normalized:.3f}",
    ]
