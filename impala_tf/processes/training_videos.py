"""--video_every: a video of the newest policy now and then, made beside the learner.

A process of its own with a low priority plays the game and writes the files: whatever it
computes, the learner and the actors come first, and a level that crashes when it is drawn takes
nothing with it. Learner 0 starts it, so the same code serves a run on this machine and a launched
one, and TensorBoard's files keep one writer.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from impala_tf import config as configs
from impala_tf.callbacks import Callback
from impala_tf.config import Config, ConfigError, Given, user_commands
from impala_tf.environments import suites
from impala_tf.environments.suites import RenderedGame
from impala_tf.logdir import Logdir
from impala_tf.machine.process_lifetime import PARENT_VARIABLE

MODULE = "impala_tf.processes.video_main"
LOG = "video.log"
_NICENESS = 10  # a tenth of a core if all are busy: with 19, a video takes ten times as long
_FILM = '{"video": '  # how the line with a `Film` begins
_STOP_S = 5.0
_POLL_S = 0.2

_log = logging.getLogger("impala_tf.learner")


class Film(NamedTuple):
    """A video that is complete; the process that made it prints this as JSON."""

    video: str
    """Path of the mp4 file."""
    gif: str
    """Path of a small GIF of its beginning."""
    width: int
    """Of the GIF, in pixels."""
    height: int
    """Of the GIF, in pixels."""
    environment_frames: int
    """That its policy was trained for."""


def check(config: Config) -> None:
    """Draws one picture of each level, if --video_every is given.

    Raises:
      ConfigError: a level cannot be drawn.
    """
    if config.run.video_every is None:
        return
    for index in range(len(suites.levels(config.environment))):
        try:
            game = RenderedGame(config.environment, seed=0, index=index)
            try:
                game.environment.reset()
                game.frame()
            finally:
                game.close()
        except ConfigError as error:
            reason = error.problems[0].removeprefix("--video: ")
            raise ConfigError(
                f"--video_every: {reason}; leave the flag out if there should be no videos"
            ) from error


class TrainingVideos(Callback):
    """Starts a process for each video, and passes on what it has made.

    Args:
      config: the run's.
      logdir: of the run.
      publish: takes each complete video, and the environment frames of the last row.
      command: what makes a video; [] for the real one.
    """

    def __init__(
        self,
        config: Config,
        logdir: Logdir,
        publish: Callable[[Film, int], None],
        command: tuple[str, ...] = (),
    ) -> None:
        assert config.run.video_every is not None
        self._every = config.run.video_every
        self._folder = logdir.videos
        self._publish = publish
        self._command = command or _command(config)
        self._process: subprocess.Popen[bytes] | None = None
        # Processes end with the thread that starts them, and `learn` has a thread of its own.
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="video")
        self._frames = 0
        self._next: int | None = None
        self._made = 0
        self._failed = False

    def on_row(self, row: Mapping[str, Any]) -> None:
        """Passes on the video that has become complete."""
        self._frames = int(row["environment_frames"])
        if self._next is None:
            self._schedule()
        self._collect()

    def on_checkpoint(self, path: Path) -> None:
        """Starts a video if it is time for one and none is being made."""
        if self._next is None or self._frames < self._next or self._process is not None:
            return
        self._schedule()
        try:
            self._starter.submit(self._start).result()
        except OSError as error:  # such as a full disk, which is no failure of the run
            self._complain(str(error))

    def close(self, may_wait: Callable[[], bool] = lambda: False) -> None:
        """Ends the process, and removes what is not complete.

        Args:
          may_wait: while this says so, the video that is being made may be completed.
        """
        while self._process is not None and self._process.poll() is None and may_wait():
            time.sleep(_POLL_S)
        self._collect()
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
        self._starter.shutdown()
        self._tidy_up()

    def _schedule(self) -> None:
        self._next = (self._frames // self._every + 1) * self._every

    def _start(self) -> None:
        self._tidy_up()
        self._folder.mkdir(exist_ok=True)
        environment = {**os.environ, PARENT_VARIABLE: str(os.getpid())}
        if user_commands.IS_CHECKOUT:
            paths = (str(user_commands.PROJECT), os.environ.get("PYTHONPATH"))
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        with (self._folder / LOG).open("wb") as log:
            self._process = subprocess.Popen(
                [*self._command, str(self._folder), str(self._made)],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        # Before it has threads, which would keep the old one.
        with contextlib.suppress(ProcessLookupError):
            os.setpriority(os.PRIO_PROCESS, self._process.pid, _NICENESS)

    def _collect(self) -> None:
        """Passes on the video of a process that has ended; says once if it has none."""
        if self._process is None or self._process.poll() is None:
            return
        status, self._process = self._process.returncode, None
        try:
            lines = (self._folder / LOG).read_text(errors="replace").strip().splitlines()
            films = [line for line in lines if line.startswith(_FILM)] if status == 0 else []
            if not films:
                self._complain(lines[-1] if lines else f"its process ended with status {status}")
                return
            film = Film(**json.loads(films[-1]))
            self._made += 1
            self._publish(film, self._frames)
            Path(film.gif).unlink(missing_ok=True)
        except OSError as error:
            self._complain(str(error))
        else:
            _log.info("video: %s", film.video)

    def _complain(self, reason: str) -> None:
        """Warns, once: what fails now fails again most likely."""
        if not self._failed:
            self._failed = True
            _log.warning("--video_every: no video: %s; see %s", reason, self._folder / LOG)

    def _tidy_up(self) -> None:
        """Removes what a process has left that was killed."""
        for path in self._folder.glob(".*"):
            path.unlink(missing_ok=True)


def _command(config: Config) -> tuple[str, ...]:
    """Returns what makes a video; the folder and the number of the video follow."""
    given = Given.of(config).replace(
        mode="test", job_name="", device="cpu", checkpoint="newest", fresh=False, callbacks=""
    )
    # -P: modules in the current folder must not hide those of the same name that Python has.
    return (sys.executable, "-P", "-m", MODULE, *configs.to_flags(given))
