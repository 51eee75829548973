"""What the first learner writes: rows, TensorBoard, copies of checkpoints, results, videos."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from impala_tf import config as configs
from impala_tf.config import Config
from impala_tf.environments import suites
from impala_tf.learner import user_callbacks
from impala_tf.learner.best_checkpoint import BestCheckpoint
from impala_tf.learner.moments import MIN_STD
from impala_tf.learner.user_callbacks import UserCallbacks
from impala_tf.logdir import Logdir
from impala_tf.monitoring.metrics import EVALUATION_METRICS, LEVEL_METRICS, METRICS, info_columns
from impala_tf.monitoring.rows import (
    GAMES,
    LevelRows,
    Score,
    evaluation_points,
    evaluation_status,
)
from impala_tf.monitoring.status_file import FOR_USER, EvaluationStatus
from impala_tf.monitoring.storage import StorageWatch
from impala_tf.monitoring.wandb_writer import WandbWriter
from impala_tf.monitoring.writers import CsvWriter, TensorBoardWriter, Writer
from impala_tf.processes.evaluator import Evaluator, Result
from impala_tf.processes.mirroring import MirrorUploads
from impala_tf.types import EnvironmentSpec

_BEST = "the best checkpoint"

_log = logging.getLogger("impala_tf.learner")


class LearnerOutputs:
    """The writers and savers of rank 0, and the user's callbacks.

    `writers` get the rows of metrics; `files` have other rows, and go back with them when a run
    resumes. `level_rows` is None for one level, and `evaluator` and `uploads` without their flags.
    """

    def __init__(
        self, config: Config, spec: EnvironmentSpec, logdir: Logdir, storage: StorageWatch
    ) -> None:
        run, flags = config.run, configs.to_dict(config)
        self._config, self._storage = config, storage
        self._score: Score | None = None
        self._checkpoint: Path | None = None
        self._tells_small_returns = config.loss.value_normalization == "running"
        self._tensorboard = TensorBoardWriter(logdir.tensorboard, flags)
        columns = METRICS | info_columns(configs.split(run.info_metrics))
        self.writers: dict[str, Writer] = {
            "csv": CsvWriter(logdir.metrics, columns),
            "tensorboard": self._tensorboard,
        }
        self._wandb = WandbWriter(logdir.path, flags) if run.track == "wandb" else None
        if self._wandb is not None:
            self.writers["wandb"] = self._wandb
        self.files: list[CsvWriter] = []
        self.level_rows: LevelRows | None = None
        if len(spec.levels) > 1:
            level_file = CsvWriter(logdir.level_metrics, LEVEL_METRICS)
            levels = suites.levels(config.environment)
            self.level_rows = LevelRows(
                level_file, spec.levels, lambda index, mean: suites.normalized(levels[index], mean)
            )
            self.files.append(level_file)
        self._evaluations = CsvWriter(logdir.evaluations, EVALUATION_METRICS)
        self._newest: EvaluationStatus | None = None
        if run.eval_every is not None:
            self.files.append(self._evaluations)
        self.evaluator: Evaluator | None = None
        if run.eval_every is not None or run.video_every is not None:
            self.evaluator = Evaluator(config, spec, logdir, self._show)
        self.uploads = MirrorUploads(run.mirror, logdir, storage) if run.mirror else None
        self.callbacks = UserCallbacks(user_callbacks.load(run), logdir, self._tensorboard.add)
        self.writers["callbacks"] = self.callbacks
        several = self.level_rows is not None
        self._best = BestCheckpoint(
            logdir, "mean_over_levels" if several else "episode_return_mean"
        )
        self._reached = ""  # --stop_at_return, in words

    @property
    def end_reason(self) -> str:
        """Why the run should end before its last frame; '' if it should not."""
        return self.callbacks.end_reason or self._reached

    def follow_row(self, row: Mapping[str, Any], largest_return: float) -> None:
        """Does what follows from a row; `largest_return` is absolute, of the last 100 games."""
        if self.level_rows is not None:
            self._score = self.level_rows.score()
        elif (mean := row.get("episode_return_mean")) is not None:
            self._score = Score(mean, row["episodes"])
        wanted = self._config.run.stop_at_return
        if not self._reached and self._score is not None:
            self._reached = reached(wanted, self._score, self.level_rows is not None)
        if self.evaluator is not None:
            self.evaluator.on_row(row)
        # Where rewards are rare, all returns may be 0.
        is_small = row["episodes"] >= GAMES and 0.0 < largest_return < MIN_STD
        if self._tells_small_returns and is_small:
            self._tells_small_returns = False
            _log.warning(
                "the returns stay below %.2g, and --value_normalization=running has no unit below"
                " %g: little is learned from them; scale the rewards with a wrapper"
                " (--level_wrappers)",
                largest_return,
                MIN_STD,
                extra=FOR_USER,
            )

    def follow_checkpoint(self, checkpoint: Path) -> None:
        """Does what follows from a checkpoint. Each comes with a row."""
        self._checkpoint = checkpoint
        self.callbacks.on_checkpoint(checkpoint)
        # The folder is the right one, as the checkpoint is there: only the disk can be full.
        with self._storage.attempt(_BEST, proven=True):
            self._best.keep(checkpoint, self._score)
        if self.evaluator is not None:
            self.evaluator.on_checkpoint(checkpoint)
        if self.uploads is not None:
            self.uploads.on_checkpoint(checkpoint)

    def evaluation(self, done: bool) -> EvaluationStatus | None:
        """Returns the newest result of --eval_every, and whether the end awaits another."""
        awaited = done and self.evaluator is not None and self.evaluator.awaits_games
        if self._newest is None and not awaited:
            return None
        none = EvaluationStatus(
            environment_frames=0, return_mean=None, episodes=0, played="", awaited=False
        )
        return {**(self._newest or none), "awaited": awaited}

    def close(
        self, done: bool, stopped: Callable[[], bool], write_status: Callable[[], None]
    ) -> None:
        """Waits for the last evaluation and upload, if the run is done, and tells the status."""
        if self.evaluator is not None:
            self.evaluator.close(lambda: done and not stopped() and not self.callbacks.failure)
            write_status()
        self._storage.forget(_BEST)  # the checkpoint itself is there
        if self.uploads is not None:
            if self._checkpoint is not None and self.evaluator is not None and done:
                self.uploads.on_checkpoint(self._checkpoint)  # again, with its results
            if done or stopped():
                self.uploads.close(stopped)
            write_status()

    def _show(self, result: Result, environment_frames: int) -> None:
        """Shows the evaluator's results in files, TensorBoard and W&B."""
        shown: dict[str, Any] = {}
        if result.rows:
            for row in result.rows:
                self._evaluations.write(row)
            self._newest = evaluation_status(result.rows)
            points = evaluation_points(result.rows)
            self._tensorboard.add(points, result.environment_frames, "eval")
            points["environment_frames"] = result.environment_frames
            shown = {f"eval/{name}": value for name, value in points.items()}
        if result.video:
            gif = Path(result.gif).read_bytes()
            self._tensorboard.add_gif("video/game", gif, result.environment_frames)
        if self._wandb is not None:
            if result.video:
                import wandb

                caption = f"{result.environment_frames:,} frames"
                shown["video/game"] = wandb.Video(result.video, caption=caption, format="mp4")
            self._wandb.log(shown, environment_frames)


def reached(wanted: float | None, score: Score, over_levels: bool) -> str:
    """Returns why a run stops, if its score is as high as --stop_at_return; else ''."""
    if wanted is None or score.games < GAMES or score.mean < wanted:
        return ""
    name = "mean over the levels" if over_levels else "mean return"
    mean = f"{score.mean:.4g}" if abs(score.mean) < 1e4 else f"{score.mean:.0f}"
    reason = f"--stop_at_return={wanted:.12g} is reached: the {name} is {mean}"
    _log.info("%s", reason)
    return reason
