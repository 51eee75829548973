"""The process that makes one video for --video_every; see `training_videos`.

    python -m impala_tf.processes.video_main FLAGS... FOLDER NUMBER

FLAGS are the run's, FOLDER is for the video, and NUMBER counts the videos so far, because agents of
several levels play these in turn. The last line of output is a `Film` as JSON.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from impala_tf import config as configs
from impala_tf.environments import suites
from impala_tf.processes import beside_main
from impala_tf.processes.beside import result_line
from impala_tf.processes.training_videos import NAME, Film

LONGEST_S = 300.0
"""How much of a game is shown, as it may never end."""
_GIF_S = 10.0
_GIF_MAX_FPS = 15


def main(arguments: list[str]) -> None:
    """Plays a game with the newest checkpoint, and writes it to files.

    Raises:
      ConfigError: there is no complete checkpoint, or the level cannot be drawn.
    """
    *flags, folder, number = arguments
    trained = beside_main.load(flags)
    # These import TensorFlow.
    from impala_tf.evaluation import video
    from impala_tf.processes import players

    levels = suites.levels(trained.config.environment)
    index = int(number) % len(levels)
    name = f"{trained.environment_frames:012d}"
    if len(levels) > 1:
        name += f"-{configs.slug(levels[index].level_name)}"
    videos = Path(folder).absolute()  # a level may leave the current folder
    path, gif = videos / f"{name}.mp4", videos / f".{name}.gif"
    with players.filmed(players.of_checkpoint(trained), index=index) as (pictures, fps):
        clip = _Clip(fps)
        longest = itertools.islice(pictures, int(LONGEST_S * fps))
        video.write_mp4(path, clip.watched(longest), fps)
    width, height = video.write_gif(gif, clip.pictures, clip.fps)
    film = Film(str(path), str(gif), width, height, trained.environment_frames)
    print(result_line(NAME, film._asdict()))


class _Clip:
    """Keeps the first pictures of a video."""

    def __init__(self, fps: float) -> None:
        self._step = max(1, round(fps / _GIF_MAX_FPS))
        self.fps = fps / self._step
        self.pictures: list[np.ndarray] = []

    def watched(self, pictures: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
        """Yields the pictures unchanged, and keeps the first ones."""
        for number, picture in enumerate(pictures):
            if number % self._step == 0 and len(self.pictures) < _GIF_S * self.fps:
                self.pictures.append(picture.copy())
            yield picture


if __name__ == "__main__":
    beside_main.run(main)
