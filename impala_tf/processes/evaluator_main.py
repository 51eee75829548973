"""What the evaluator does: games for --eval_every, a video for --video_every; see `evaluator`.

It has the run's flags, but only those two that are due, and writes a `Result` to the logdir.
"""

from __future__ import annotations

import itertools
import json
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from impala_tf import config as configs
from impala_tf.config import ConfigError, Given
from impala_tf.environments import suites
from impala_tf.evaluation import games
from impala_tf.logdir import Logdir, write_atomically
from impala_tf.processes import players, tensorflow_startup
from impala_tf.processes.common import resolve
from impala_tf.processes.evaluator import Result
from impala_tf.processes.players import Player

_LONGEST_VIDEO_S = 300.0  # a game may never end
_GIF_S = 10.0
_GIF_MAX_FPS = 15


def main(given: Given) -> int:
    """Plays with the newest checkpoint; returns 0.

    Raises:
      ConfigError: there is no complete checkpoint, or a level cannot be made or drawn.
    """
    signal.signal(signal.SIGTERM, _stop)
    try:
        tensorflow_startup.use_one_cpu_thread()
        tensorflow_startup.start_xla()
        config, spec = resolve(given)
        signal.signal(signal.SIGTERM, _stop)  # again: a level may have replaced the handler
        evaluate(players.load_checkpoint(config, spec))
    except ConfigError as error:
        if error.__cause__ is not None:  # such as what a level's own code raised
            traceback.print_exception(error.__cause__)
        raise
    return 0


def _stop(number: int, frame: FrameType | None) -> None:
    """Exits in order, so that no half-written file is left."""
    sys.exit(128 + number)


def evaluate(player: Player) -> None:
    """Does what is due, and writes the `Result` after each part; see `main`."""
    run = player.config.run
    logdir = Logdir(player.logdir.path.absolute())  # a level may leave the current folder
    result = Result(player.environment_frames)
    if run.eval_every is not None:
        count = len(suites.levels(player.config.environment))
        rows, notes = zip(*(_play(player, index) for index in range(count)), strict=True)
        result = result._replace(rows=rows, notes=[note for note in notes if note])
        write_atomically(logdir.evaluator_result, json.dumps(result._asdict()))
    if run.video_every is not None:
        video, gif = _film(player, logdir.videos)
        result = result._replace(video=str(video), gif=str(gif))
        write_atomically(logdir.evaluator_result, json.dumps(result._asdict()))


def _play(player: Player, index: int) -> tuple[Mapping[str, Any], str]:
    """Plays level `index`; returns its row of evaluation.csv, and what the user should know."""
    env = player.config.environment
    level, unseen = suites.levels(env)[index], suites.unseen(env, index)
    spec = suites.spec(suites.levels(unseen)[index]) if unseen else player.spec.of_level(index)
    began_at = time.monotonic()
    found = games.summary(player.play(unseen or env, index, num_threads=1), level)
    note = games.cut_note(found)
    row = {
        **player.progress,
        "level_name": level.level_name,
        "played": "unseen levels" if unseen else "other seeds",
        "episodes": found["num_episodes"],
        **{f"return_{name}": found[name] for name in ("mean", "std", "min", "max")},
        "length_mean": sum(found["episode_lengths"]) / found["num_episodes"],
        "normalized_return_mean": found.get("normalized_mean"),
        "policy": player.config.evaluation.test_policy,
        "evaluation_s": time.monotonic() - began_at,
        "protocol": spec.protocol,
    }
    return row, f"evaluation of {level.level_name}: {note}" if note else ""


def _film(player: Player, folder: Path) -> tuple[Path, Path]:
    """Plays a game; writes a video and a GIF of its beginning, and returns their paths.

    Agents of several levels play these in turn.
    """
    from impala_tf.evaluation import video

    levels = suites.levels(player.config.environment)
    index = len(list(folder.glob("*.mp4"))) % len(levels)
    name = f"{player.environment_frames:012d}"
    if len(levels) > 1:
        name += f"-{configs.slug(levels[index].level_name)}"
    path, gif = folder / f"{name}.mp4", folder / f".{name}.gif"
    with player.film(index=index) as (pictures, fps):
        step = max(1, round(fps / _GIF_MAX_FPS))
        first: list[np.ndarray] = []

        def watched() -> Iterator[np.ndarray]:
            shown = itertools.islice(pictures, int(_LONGEST_VIDEO_S * fps))
            for number, picture in enumerate(shown):
                if number % step == 0 and number < _GIF_S * fps:
                    first.append(picture.copy())
                yield picture

        video.write_mp4(path, watched(), fps)
    video.write_gif(gif, first, fps / step)
    return path, gif
