"""The evaluator: a process beside learner 0 that plays for --eval_every and --video_every.

It has a low priority, so the learner and the actors come first, and a level that crashes in it does
no harm. Learner 0 starts it, so that local and launched runs share the code, and TensorBoard's
files have one writer. `evaluator_main` is what the process does.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from impala_tf import config as configs
from impala_tf.config import Config
from impala_tf.environments import suites
from impala_tf.logdir import Logdir
from impala_tf.machine.supervision import Command, SupervisedProcess
from impala_tf.monitoring.status_file import FOR_USER
from impala_tf.processes import run_file
from impala_tf.processes.common import same_folder
from impala_tf.types import EnvironmentSpec

_NICER = 10  # a tenth of a core if all are busy; with 19, a video would take ten times as long
_LONGEST_END_S = 900.0  # 50 games of Atari with a residual network take five minutes
_STOP_S = 5.0
_POLL_S = 0.2

_log = logging.getLogger("impala_tf.learner")


class Result(NamedTuple):
    """The results with a checkpoint; the process writes them as JSON."""

    environment_frames: int
    """The frames that the policy was trained for."""
    rows: Sequence[Mapping[str, Any]] = ()
    """A row of evaluation.csv for each level; none if no games were due."""
    notes: Sequence[str] = ()
    """What the user should know of the levels."""
    video: str = ""
    """Path of the mp4 file; '' if no video was due."""
    gif: str = ""
    """Path of a small GIF of its beginning, which is for TensorBoard and then removed."""


def check(config: Config, spec: EnvironmentSpec) -> None:
    """Draws a picture of each level for --video_every; raises ConfigError if that is impossible."""
    if config.run.video_every is not None:
        with same_folder():
            suites.check_rendering(config.environment, spec)


class Evaluator:
    """Starts a process when games or a video are due, and passes on its results.

    There is one process at a time. It plays with the newest checkpoint at its start. The run's last
    checkpoint always gets games. A failure is logged once, and never ends the run. `publish` is
    called with each result and the environment frames of the last row; `program` comes before the
    command, for tests.
    """

    def __init__(
        self,
        config: Config,
        spec: EnvironmentSpec,
        logdir: Logdir,
        publish: Callable[[Result, int], None],
        program: Sequence[str] = (),
    ) -> None:
        every = {"eval_every": config.run.eval_every, "video_every": config.run.video_every}
        self._every = {flag: frames for flag, frames in every.items() if frames is not None}
        self._config = configs.replace(
            config,
            device="cpu",
            checkpoint="newest",
            callbacks="",
            environment_processes=False,  # it can take its time: the learner needs the cores
        )
        self._spec, self._logdir, self._publish = spec, logdir, publish
        self._program = program
        self.longest_end_s = _LONGEST_END_S
        self.process: SupervisedProcess | None = None
        self._frames = 0  # in the last row
        self._began: dict[str, int] = {}  # {flag: the frames when a process last began for it}
        self._due: Collection[str] = ()  # the flags for which the process works
        self._saved_frames = 0  # of the newest checkpoint
        self._played_frames = 0  # of the last checkpoint that got games
        self._failed = self._closed = False

    @property
    def awaits_games(self) -> bool:
        """Whether the newest checkpoint still needs games."""
        newer = self._saved_frames > self._played_frames
        return not self._closed and "eval_every" in self._every and newer

    def on_row(self, row: Mapping[str, Any]) -> None:
        """Passes on a complete result."""
        self._frames = int(row["environment_frames"])
        self._began = self._began or dict.fromkeys(self._every, self._frames)
        if self.process is not None and self.process.over:
            self._collect()

    def on_checkpoint(self, path: Path) -> None:
        """Starts a process if something is due and none is at work."""
        self._saved_frames = self._frames  # each checkpoint comes with a row
        due = [
            f for f, every in self._every.items() if self._frames // every > self._began[f] // every
        ]
        if due and self.process is None:
            self._begin(due)

    def close(self, may_wait: Callable[[], bool] = lambda: False) -> None:
        """Ends the process, and removes incomplete files.

        While `may_wait` says so, but for no longer than `longest_end_s`, waits for the process, and
        for one for the last checkpoint.
        """
        deadline = time.monotonic() + self.longest_end_s
        self._await(lambda: time.monotonic() < deadline and may_wait())
        if self.awaits_games and may_wait() and time.monotonic() < deadline:
            self._begin(["eval_every"])
            self._await(lambda: time.monotonic() < deadline and may_wait())
        if self.awaits_games and may_wait():
            minutes = self.longest_end_s / 60
            self._complain(f"the last one was not complete {minutes:.0f} minutes after training")
        self._closed = True

    def _begin(self, due: Collection[str]) -> None:
        self._due = due
        self._began.update(dict.fromkeys(due, self._frames))
        self._tidy_up()
        path = self._logdir.evaluator_run
        others = dict.fromkeys(self._every.keys() - due)
        run_file.write(path, configs.replace(self._config, **others), self._spec)
        command = Command(
            "evaluator",
            ("nice", "-n", str(_NICER), *self._program, *run_file.command(path, "evaluator")),
            workdir=str(Path.cwd()),
            log_path=str(self._logdir.evaluator_log),
            max_restarts=0,
            proven_after_s=math.inf,
            stop_timeout_s=_STOP_S,
        )
        self.process = SupervisedProcess(command)
        self.process.start()

    def _await(self, goes_on: Callable[[], bool]) -> None:
        """Waits for the process while `goes_on` says so, ends it, and passes on its result."""
        while self.process is not None and not self.process.over and goes_on():
            time.sleep(_POLL_S)
        self._collect()

    def _collect(self) -> None:
        """Ends the process, and passes on what it has written; logs once if it failed."""
        process, self.process = self.process, None
        if process is not None:
            process.stop()
            process.join()
            if process.state.state not in ("finished", "stopped"):
                self._complain(process.state.detail)
            try:
                if self._logdir.evaluator_result.exists():
                    result = Result(**json.loads(self._logdir.evaluator_result.read_text()))
                    if result.rows:
                        self._played_frames = result.environment_frames
                    _log_result(result)
                    self._publish(result, self._frames)
            except OSError as error:
                self._complain(str(error))
        self._tidy_up()

    def _complain(self, reason: str) -> None:
        """Warns only once, as the next try will probably fail, too."""
        if not self._failed:
            self._failed = True
            flags = ", ".join(f"--{flag}" for flag in self._due or self._every)
            what = "%s: no result: %s; see %s"
            _log.warning(what, flags, reason, self._logdir.evaluator_log, extra=FOR_USER)

    def _tidy_up(self) -> None:
        """Removes the files that a process has left: results passed on, and incomplete ones."""
        for path in (self._logdir.evaluator_result, *self._logdir.videos.glob(".*")):
            if not path.is_dir():  # such as Jupyter's .ipynb_checkpoints
                path.unlink(missing_ok=True)


def _log_result(result: Result) -> None:
    for note in result.notes:
        _log.warning("%s", note, extra=FOR_USER)
    frames = f"{result.environment_frames:,}"
    for row in result.rows:
        mean, played = f"mean return {row['return_mean']:.2f}", f"{row['episodes']} games"
        _log.info(
            "evaluation at %s frames: %s: %s in %s, %s; %s",
            frames,
            row["level_name"],
            mean,
            played,
            row["played"],
            row["protocol"],
        )
    if result.video:
        _log.info("video: %s", result.video)
