"""The evaluation process: --mode=test."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from impala_tf import config as configs
from impala_tf.config import ConfigError, EnvironmentConfig, Given, cores_here, user_commands
from impala_tf.environments import suites
from impala_tf.environments.batched import BatchedEnvironment
from impala_tf.evaluation import games
from impala_tf.logdir import write_atomically
from impala_tf.processes import players
from impala_tf.processes.common import same_folder, seed_of
from impala_tf.processes.players import Player
from impala_tf.types import Episode

# Games played in parallel: enough to fill a batch, but not so many that most wait for the last one.
_MAX_ENVS = 16


def main(given: Given) -> int:
    """Plays whole games with the agent of a run or of an exported folder; returns 0.

    Prints a summary. The flags that are not given are the run's. The result is written to a run's
    logdir; an exported folder gets only videos.

    Raises:
      ConfigError: there is no logdir or no complete checkpoint, the checkpoint is of another level
        or network, or a package is missing.
    """
    agent = load(given)
    frames, spec = agent.environment_frames, agent.spec
    print(f"{agent.source} at {frames:,} frames; {spec.protocol}", flush=True)
    result, lines = evaluate(agent)
    show(lines)  # before anything is written, as the disk may be full or read-only
    if not agent.is_exported:
        print(f"written to {write(agent, result)}")
    if agent.evaluation.video:
        write_films(agent)
    return 0


def load(given: Given) -> Player:
    """Returns the agent, like `players.load`; with --video, checks that levels can be drawn."""
    if given.evaluation.video and importlib.util.find_spec("av") is None:
        install = user_commands.install_extra("learner")
        raise ConfigError(f"--video: needs the package av, which is in an extra: {install}")
    agent = players.load(given, choose_device=True)
    if agent.evaluation.video:  # before games are played in vain
        with same_folder():
            suites.check_rendering(agent.environment)
    return agent


def show(found: Sequence[str | Table]) -> None:
    """Prints the lines and tables from `evaluate`."""
    console = Console()
    for part in found:
        console.print(part, markup=False, highlight=False, soft_wrap=isinstance(part, str))


def evaluate(agent: Player) -> tuple[dict[str, Any], list[str | Table]]:
    """Plays whole games of each level; returns the content of evaluation.json, and what to print.

    On generated levels, the agent also plays those that training did not use.
    """
    rows = [_row(agent, index) for index in range(len(suites.levels(agent.environment)))]
    notes = [f"{row['level_name']}: {note}" for row in rows if (note := games.cut_note(row))]
    if len(rows) == 1:
        (scores,) = rows
        unseen = [scores["unseen"]] if "unseen" in scores else []
        lines: list[str | Table] = [_line(row, agent) for row in (scores, *unseen)]
    else:
        scores = games.over_levels(rows)
        lines = [games.table(scores)]
    result = {
        **scores,
        "test_policy": agent.evaluation.test_policy,
        "level_name": agent.spec.level_name,
        "agent_name": agent.flags["agent_name"],
        "protocol": agent.spec.protocol,
        "checkpoint": str(agent.source),
        "environment_frames": agent.environment_frames,
        "seed": agent.flags["seed"],
    }
    return result, [*lines, *notes]


def _row(agent: Player, index: int) -> dict[str, Any]:
    """Plays level `index`; returns its result, as `games.over_levels` takes it."""
    levels = suites.levels(agent.environment)
    level = levels[index]
    if len(levels) > 1:
        print(f"{level.level_name}:", flush=True)
    row = {"level_name": level.level_name, **_scores(level, play(agent, agent.environment, index))}
    if (unseen := suites.unseen(agent.environment, index)) is not None:
        print(f"{level.level_name}, unseen levels:", flush=True)
        name = suites.suite_of(level).level_range(suites.levels(unseen)[index])
        episodes = play(agent, unseen, index)
        row["unseen"] = {"level_name": f"levels {name}", **_scores(level, episodes)}
    return row


def _scores(level: EnvironmentConfig, episodes: list[Episode]) -> dict[str, Any]:
    scores = games.summary(episodes)
    normalized = suites.normalized(level, scores["mean"])
    return scores if normalized is None else {**scores, "normalized_mean": normalized}


def _line(row: dict[str, Any], agent: Player) -> str:
    count = row["num_episodes"]
    text = (
        f"{row['level_name']}: {count} game{'s' * (count > 1)},"
        f" {agent.evaluation.test_policy} actions: mean {row['mean']:.2f}, median"
        f" {row['median']:.2f}, std {row['std']:.2f}, min {row['min']:.2f}, max {row['max']:.2f}"
    )
    return text + (f", normalised {row['normalized_mean']:.3f}" if "normalized_mean" in row else "")


def write(agent: Player, result: dict[str, Any]) -> Path:
    """Writes evaluation.json; returns its path. Raises OSError if that fails."""
    path = agent.logdir.path / "evaluation.json"
    write_atomically(path, json.dumps(result, indent=1) + "\n")
    return path


def write_films(agent: Player) -> None:
    """Plays one more game of each level, and writes it to an mp4 file."""
    from impala_tf.evaluation import video  # needs a package that not every machine has

    levels = suites.levels(agent.environment)
    for index, level in enumerate(levels):
        # The Hugging Face hub shows replay.mp4 beside the card of an agent.
        name = "replay" if agent.is_exported else "evaluation"
        name += f"-{configs.slug(level.level_name)}" if len(levels) > 1 else ""
        path = agent.logdir.path / f"{name}.mp4"
        print(f"playing one more game for {path}", flush=True)
        whole = path.absolute()  # a level may leave the current folder
        with same_folder(), players.filmed(agent, index=index) as (pictures, fps):
            video.write_mp4(whole, pictures, fps)
        print(f"written to {path}", flush=True)


def play(
    agent: Player, env: EnvironmentConfig, index: int = 0, num_threads: int = 0
) -> list[Episode]:
    """Plays whole games in the environments of `env`; see `games.play` for those that do not end.

    Their seeds derive from --seed, and differ from those of training.

    Args:
      env: the flags of the level, or levels.
      index: the index of the level, if `env` lists several.
      num_threads: threads for native vector environments; 0: one per core.

    Raises:
      ConfigError: the level cannot be made, or returns rewards that are not finite.
    """
    num_games = agent.evaluation.test_num_episodes
    num_envs = min(num_games, _MAX_ENVS)
    seed = seed_of(agent.flags["seed"], "test")
    episodes: list[Episode] = []
    printed_at = time.monotonic()
    with same_folder():
        threads = num_threads or min(num_envs, cores_here())
        vector_env = suites.make(env, num_envs, seed, num_threads=threads, index=index)
        with contextlib.closing(BatchedEnvironment(vector_env)) as environment:
            for episode in agent.play(environment, env, index, num_envs, num_games, seed):
                if episode is not None:
                    episodes.append(episode)
                if time.monotonic() - printed_at >= agent.flags["metrics_interval_s"]:
                    printed_at = time.monotonic()
                    print(f"{len(episodes)} of {num_games} games played", flush=True)
    return episodes
