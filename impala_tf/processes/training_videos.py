"""--video_every: regular videos of the newest policy, made beside the learner."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from impala_tf.config import Config, ConfigError
from impala_tf.environments import suites
from impala_tf.logdir import Logdir
from impala_tf.processes import beside
from impala_tf.processes.beside import Beside, Work
from impala_tf.processes.common import same_folder

MODULE = "impala_tf.processes.video_main"
NAME = "video"
_LONGEST_S = 3600.0
_LONGEST_END_S = 60.0

_log = logging.getLogger("impala_tf.learner")


class Film(NamedTuple):
    """A complete video; the process that made it prints this as JSON."""

    video: str
    """Path of the mp4 file."""
    gif: str
    """Path of a small GIF of its beginning."""
    width: int
    """The GIF's width in pixels."""
    height: int
    """The GIF's height in pixels."""
    environment_frames: int
    """The frames that its policy was trained for."""


def check(config: Config) -> None:
    """Draws one picture of each level, if --video_every is given.

    Raises:
      ConfigError: a level cannot be drawn.
    """
    if config.run.video_every is None:
        return
    try:
        with same_folder():
            suites.check_rendering(config.environment)
    except ConfigError as error:
        reason = error.problems[0].removeprefix("--video: ")
        raise ConfigError(
            f"--video_every: {reason}; leave the flag out if there should be no videos"
        ) from error


class TrainingVideos(Beside):
    """Starts a process for each video, and passes on the videos.

    Args:
      config: the run's config.
      logdir: the run's folder.
      publish: called with each complete video, and the environment frames of the last row.
      command: the command that makes a video; () for the real one.
    """

    def __init__(
        self,
        config: Config,
        logdir: Logdir,
        publish: Callable[[Film, int], None],
        command: tuple[str, ...] = (),
    ) -> None:
        assert config.run.video_every is not None
        self._folder = logdir.videos
        self._publish = publish
        self._made = 0
        super().__init__(
            Work(
                name=NAME,
                flag="video_every",
                every=config.run.video_every,
                log=self._folder / "video.log",
                command=command or beside.command(MODULE, config),
                longest_s=_LONGEST_S,
                longest_end_s=_LONGEST_END_S,
            )
        )

    def arguments(self) -> list[str]:
        """Returns the folder and the number of the next video."""
        return [str(self._folder), str(self._made)]

    def publish(self, result: Mapping[str, Any], environment_frames: int) -> None:
        """Passes on a video, and removes its GIF."""
        film = Film(**result)
        self._made += 1
        self._publish(film, environment_frames)
        Path(film.gif).unlink(missing_ok=True)
        _log.info("video: %s", film.video)

    def tidy_up(self) -> None:
        """Removes incomplete videos."""
        for path in self._folder.glob(".*"):
            if not path.is_dir():  # such as Jupyter's .ipynb_checkpoints
                path.unlink(missing_ok=True)
