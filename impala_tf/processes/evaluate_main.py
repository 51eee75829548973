"""The evaluation process: impala test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from impala_tf import config as configs
from impala_tf.config import Given
from impala_tf.environments import suites
from impala_tf.evaluation import games
from impala_tf.logdir import write_atomically
from impala_tf.processes import players
from impala_tf.processes.common import check_package, same_folder
from impala_tf.processes.players import Player


def main(given: Given) -> int:
    """Plays whole games with the agent of a run or of an exported folder; returns 0.

    The flags that are not given are the run's. The result is written to a run's logdir; an exported
    folder gets only videos. Raises ConfigError: there is no logdir or no complete checkpoint, the
    checkpoint is of another level or network, or a package is missing.
    """
    player = load(given)
    frames, protocol = player.environment_frames, player.spec.protocol
    print(f"{player.source} at {frames:,} frames; {protocol}", flush=True)
    result = evaluate(player)
    show(result)  # before anything is written, as the disk may be full or read-only
    if path := write(player, result):
        print(f"written to {path}")
    return 0


def load(given: Given) -> Player:
    """Returns the agent, like `players.load`; with --video, checks that levels can be drawn."""
    if given["video"]:
        check_package("--video", "av", "learner")
    player = players.load(given, choose_device=True)
    if player.config.evaluation.video:  # before games are played in vain
        with same_folder():
            suites.check_rendering(player.config.environment, player.spec)
    return player


def evaluate(player: Player) -> dict[str, Any]:
    """Plays whole games of each level; returns the content of evaluation.json.

    On generated levels, the agent also plays those that training did not use.
    """
    config = player.config
    rows = [_play(player, index) for index in range(len(suites.levels(config.environment)))]
    return {
        **(rows[0] if len(rows) == 1 else games.over_levels(rows)),
        "test_policy": config.evaluation.test_policy,
        "level_name": player.spec.level_name,
        "agent_name": config.agent.agent_name,
        "protocol": player.spec.protocol,
        "checkpoint": str(player.source),
        "environment_frames": player.environment_frames,
        "seed": config.run.seed,
    }


def _play(player: Player, index: int) -> dict[str, Any]:
    """Plays level `index`; returns its result, as `games.over_levels` takes it."""
    env = player.config.environment
    levels = suites.levels(env)
    level = levels[index]
    if len(levels) > 1:
        print(f"{level.level_name}:", flush=True)
    row = games.summary(player.play(env, index), level)
    if (unseen := suites.unseen(env, index)) is not None:
        print(f"{level.level_name}, unseen levels:", flush=True)
        name = suites.suite_of(level).level_range(suites.levels(unseen)[index])
        of_unseen = games.summary(player.play(unseen, index), level)
        row["unseen"] = {**of_unseen, "level_name": f"levels {name}"}
    return row


def show(result: games.Summary) -> None:
    """Prints what `evaluate` returned."""
    rows = result.get("levels", [result])
    printed: list[str | Table] = [games.table(result)] if len(rows) > 1 else []
    if not printed:
        parts = [result, *([result["unseen"]] if "unseen" in result else [])]
        printed += [games.line(part, result["test_policy"]) for part in parts]
    console = Console()
    notes = [f"{row['level_name']}: {note}" for row in rows if (note := games.cut_note(row))]
    for part in [*printed, *notes]:
        console.print(part, markup=False, highlight=False, soft_wrap=isinstance(part, str))


def write(player: Player, result: games.Summary) -> Path | None:
    """Writes evaluation.json of a run, and with --video a video of one more game of each level.

    Returns its path; None for an exported folder, which gets only videos. Raises OSError.
    """
    path = None
    if player.agent is not None:
        path = player.logdir.path / "evaluation.json"
        write_atomically(path, json.dumps(result, indent=1) + "\n")
    if player.config.evaluation.video:
        _write_videos(player)
    return path


def _write_videos(player: Player) -> None:
    from impala_tf.evaluation import video  # needs a package that not every machine has

    levels = suites.levels(player.config.environment)
    for index, level in enumerate(levels):
        # The Hugging Face hub shows replay.mp4 beside the card of an agent.
        name = "replay" if player.agent is None else "evaluation"
        name += f"-{configs.slug(level.level_name)}" if len(levels) > 1 else ""
        path = player.logdir.path / f"{name}.mp4"
        print(f"playing one more game for {path}", flush=True)
        whole = path.absolute()  # a level may leave the current folder
        with same_folder(), player.film(index=index) as (pictures, fps):
            video.write_mp4(whole, pictures, fps)
        print(f"written to {path}", flush=True)
