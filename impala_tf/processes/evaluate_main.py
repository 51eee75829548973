"""The evaluation process: --mode=test."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from impala_tf import config as configs
from impala_tf.config import ConfigError, EnvironmentConfig, Given, cores_here, user_commands
from impala_tf.environments import suites
from impala_tf.environments.batched import BatchedEnvironment
from impala_tf.evaluation import games
from impala_tf.logdir import write_atomically
from impala_tf.monitoring.wandb_writer import WandbWriter
from impala_tf.processes import own_modules, players, provenance
from impala_tf.processes.common import same_folder, seed_of
from impala_tf.processes.players import Player
from impala_tf.types import Episode

# Games played in parallel: enough to fill a batch, but not so many that most wait for the last one.
_MAX_ENVS = 16
# The Hugging Face hub shows replay.mp4 beside the card of an agent.
_HUB_VIDEO = "replay"


def main(given: Given) -> int:
    """Plays whole games with the agent of a run or of an exported folder; returns 0.

    Prints a summary. The flags that are not given are the run's. The result is written to a run's
    logdir; an exported folder gets only videos.

    Raises:
      ConfigError: there is no logdir or no complete checkpoint, the checkpoint is of another level
        or network, a package is missing, or the result cannot be written after it was printed.
    """
    agent = load(given)
    frames, spec = agent.environment_frames, agent.spec
    print(f"{agent.source} at {frames:,} frames; {spec.protocol}", flush=True)
    result, lines = played(agent)
    show(lines)  # before anything is written, as the disk may be full or read-only
    if not agent.is_exported:
        print(f"written to {write(agent, result)}")
    if agent.evaluation.video:
        write_films(agent)
    return 0


def load(given: Given) -> Player:
    """Returns the agent, like `players.load`; says whether a file of its level has changed.

    With --video, checks that its levels can be drawn.
    """
    if given.evaluation.video:
        _check_video()
    agent = players.load(given, choose_device=True)
    if agent.evaluation.video:  # before games are played in vain
        with same_folder():
            suites.check_rendering(agent.environment)
    if not agent.is_exported:
        for note in own_modules.changes(provenance.read(agent.logdir), Given(agent.flags)):
            print(note, flush=True)
    return agent


def show(found: Sequence[str | Table]) -> None:
    """Prints the lines and tables from `played`."""
    console = Console()
    for part in found:
        console.print(part, highlight=False, soft_wrap=isinstance(part, str))


def _check_video() -> None:
    if importlib.util.find_spec("av") is None:
        raise ConfigError(
            "--video: needs the package av, which is in the extra 'learner':"
            f" {user_commands.install_extra('learner')}"
        )


def played(agent: Player) -> tuple[dict[str, Any], list[str | Table]]:
    """Plays whole games; returns the content of evaluation.json, and what to print."""
    scores, lines = _levels(agent) if len(agent.spec.levels) > 1 else _level(agent)
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
    return result, lines


def write(agent: Player, result: dict[str, Any]) -> Path:
    """Writes evaluation.json; returns its path. Raises ConfigError if that fails."""
    path = agent.logdir.path / "evaluation.json"
    with _writing(path):
        write_atomically(path, json.dumps(result, indent=1) + "\n")
    return path


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"--logdir: cannot write {path}: {error.strerror}") from None


def _level(agent: Player) -> tuple[dict[str, Any], list[str | Table]]:
    """Plays the level; returns the result, and what to print."""
    sets = games.level_sets(agent.environment)
    summaries = {name: games.summary(play(agent, levels)) for name, levels in sets.items()}
    scores = games.with_normalized(agent.environment, summaries["train"])
    text = (
        "{num_episodes} game{plural}, {policy} actions: mean {mean:.2f}, median {median:.2f}, "
        "std {std:.2f}, min {min:g}, max {max:g}"
    ).format(
        policy=agent.evaluation.test_policy,
        plural="" if scores["num_episodes"] == 1 else "s",
        **scores,
    )
    if "normalized_mean" in scores:
        text += f", normalised {scores['normalized_mean']:.3f}"
    text = "; ".join(filter(None, [text, games.cut_note(scores)]))
    if "test" not in sets:
        return scores, [text]
    report = games.generalization(sets, summaries)
    return {**scores, "generalization": report}, [text, games.generalization_table(report)]


def _levels(agent: Player) -> tuple[dict[str, Any], list[str | Table]]:
    """Plays each of several levels; returns the result, and what to print."""
    environment = agent.environment
    levels = suites.levels(environment)
    summaries, unseen_summaries = [], []
    for index, level in enumerate(levels):
        print(f"{level.level_name}:", flush=True)
        summaries.append(games.summary(play(agent, environment, index)))
        unseen = suites.unseen(environment, index)
        if unseen is not None:
            print(f"{level.level_name}, unseen levels:", flush=True)
        unseen_summaries.append(
            None if unseen is None else games.summary(play(agent, unseen, index))
        )
    report = games.several_levels(levels, summaries, unseen_summaries)
    notes = [
        f"{level.level_name}: {note}"
        for level, played in zip(levels, summaries, strict=True)
        if (note := games.cut_note(played))
    ]
    return report, [games.several_levels_table(report), *notes]


def write_films(agent: Player) -> None:
    """Plays one more game of each level, and writes it to an mp4 file; --track uploads it."""
    from impala_tf.evaluation import video  # needs a package that not every machine has

    levels = suites.levels(agent.environment) if len(agent.spec.levels) > 1 else []
    stem = _HUB_VIDEO if agent.is_exported else "evaluation"
    names = [f"{stem}-{configs.slug(level.level_name)}" for level in levels] or [stem]
    paths = [agent.logdir.path / f"{name}.mp4" for name in names]
    for index, path in enumerate(paths):
        whole = path.absolute()
        with (
            same_folder(),
            players.filmed(agent, index=index) as (pictures, fps),
            _writing(path),
        ):
            video.write_mp4(whole, _told(pictures, path, fps, agent), fps)
        print(f"written to {path}", flush=True)
    if agent.flags["track"] == "wandb" and not agent.is_exported:
        writer = WandbWriter(agent.logdir.path, agent.flags)
        for path in paths:
            caption = f"after {agent.environment_frames:,} frames"
            writer.add_video(f"{path.stem}/video", path, None, caption)
        writer.close()


def _told(
    pictures: Iterator[np.ndarray], path: Path, fps: float, agent: Player
) -> Iterator[np.ndarray]:
    """Yields the pictures of a video, and prints now and then how long it is so far."""
    printed_at = time.monotonic()
    for number, picture in enumerate(pictures, 1):
        yield picture
        if time.monotonic() - printed_at >= agent.flags["metrics_interval_s"]:
            printed_at = time.monotonic()
            print(f"{path}: {number / fps:.0f} s of the game so far", flush=True)


def play(
    agent: Player, env: EnvironmentConfig, index: int = 0, num_threads: int = 0
) -> list[Episode]:
    """Plays whole games in the environments of `env`; see `games.play` for those that do not end.

    Their seeds derive from --seed, and differ from those of training.

    Args:
      agent: the agent that plays.
      env: the flags of the level, or levels.
      index: the index of the level, if `env` lists several.
      num_threads: threads for native vector environments; 0: one per core.

    Raises:
      ConfigError: the level cannot be made, raises, or returns rewards that are not finite.
    """
    num_games = agent.evaluation.test_num_episodes
    num_envs = min(num_games, _MAX_ENVS)
    seed = seed_of(agent.flags["seed"], "test")
    policy = agent.policy(num_envs, seed, agent.evaluation.test_policy)
    name = suites.levels(env)[index].level_name
    episodes: list[Episode] = []
    printed_at = time.monotonic()
    with same_folder():
        longest = games.longest_game(env, index)
        with games.errors_named(name, lambda: "before the first game"):  # it is timed when made
            threads = num_threads or min(num_envs, cores_here())
            vector_env = suites.make(env, num_envs, seed, num_threads=threads, index=index)
        with contextlib.closing(BatchedEnvironment(vector_env)) as environment:
            for episode in games.play(
                policy,
                agent.initial_state(num_envs),
                environment,
                num_envs,
                num_games,
                name,
                longest,
            ):
                if episode is not None:
                    episodes.append(episode)
                if time.monotonic() - printed_at >= agent.flags["metrics_interval_s"]:
                    printed_at = time.monotonic()
                    print(f"{len(episodes)} of {num_games} games played", flush=True)
    return episodes
