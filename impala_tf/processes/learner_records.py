"""The recorder of a learner's results, and everything that it and the checkpoints are given to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from impala_tf import config as configs
from impala_tf.config import Config
from impala_tf.environments import suites
from impala_tf.learner import callbacks
from impala_tf.learner.callbacks import Callbacks
from impala_tf.learner.group import LearnerGroup
from impala_tf.learner.unroll_queue import UnrollQueue
from impala_tf.learner.update import Learner
from impala_tf.logdir import Logdir
from impala_tf.monitoring.evaluations import EvaluationRows
from impala_tf.monitoring.metrics import (
    LEVEL_METRICS,
    METRICS,
    info_columns,
)
from impala_tf.monitoring.recorder import RunRecorder
from impala_tf.monitoring.rows import LevelRows
from impala_tf.monitoring.wandb_writer import WandbWriter
from impala_tf.monitoring.writers import CsvWriter, TensorBoardWriter, Writer
from impala_tf.processes.evaluator import Evaluator, Result
from impala_tf.processes.mirroring import MirrorUploads
from impala_tf.types import EnvironmentSpec


class Receivers(NamedTuple):
    """The receivers of rows and checkpoints, in rank 0."""

    callbacks: Callbacks
    evaluator: Evaluator | None = None
    evaluations: EvaluationRows | None = None


def make(
    config: Config,
    spec: EnvironmentSpec,
    logdir: Logdir,
    queue: UnrollQueue,
    learner: Learner,
    group: LearnerGroup,
    uploads: MirrorUploads | None,
) -> tuple[RunRecorder, Receivers]:
    """Returns the recorder of a learner's results, and the receivers of rows and checkpoints.

    Args:
      config: the run's config.
      spec: the level's specification.
      logdir: the run's folder.
      queue: the learner's queue, whose size is a metric.
      learner: the learner.
      group: the learners of the run; only that of rank 0 writes files.
      uploads: what copies checkpoints to --mirror; None without it.
    """
    writers: dict[str, Writer] = {}
    names = configs.split(config.run.info_metrics)
    level_rows = wandb = None
    receivers = Receivers(Callbacks([], [], logdir))
    if group.rank == 0:
        if len(spec.levels) > 1:
            levels_writer = CsvWriter(logdir.level_metrics, LEVEL_METRICS)
            level_rows = LevelRows(levels_writer, spec.levels, _normalizer(config))
        writers["csv"] = CsvWriter(logdir.metrics, METRICS | info_columns(names))
        writers["tensorboard"] = tensorboard = TensorBoardWriter(logdir.tensorboard)
        if config.run.track == "wandb":
            writers["wandb"] = wandb = WandbWriter(logdir.path, configs.to_dict(config))
        receivers = _receivers(config, logdir, tensorboard, wandb, uploads, level_rows)
        if receivers.evaluations is not None:
            writers["evaluations"] = receivers.evaluations
        writers["callbacks"] = receivers.callbacks
    recorder = RunRecorder(
        writers,
        queue.size,
        config.run.metrics_interval_s,
        level_rows,
        None if learner.uses.replay is None else lambda: learner.uses.replay.steps,
        names,
        group.members,
    )
    return recorder, receivers


def _receivers(
    config: Config,
    logdir: Logdir,
    tensorboard: TensorBoardWriter,
    wandb: WandbWriter | None,
    uploads: MirrorUploads | None,
    level_rows: LevelRows | None,
) -> Receivers:
    evaluator = evaluations = None
    if config.run.eval_every is not None:
        evaluations = EvaluationRows(logdir.evaluations, tensorboard, wandb)
    if config.run.eval_every is not None or config.run.video_every is not None:
        evaluator = Evaluator(config, logdir, _publisher(evaluations, tensorboard, wandb))
    more = [callback for callback in (evaluator, uploads) if callback is not None]
    of_levels = None if level_rows is None else lambda row: level_rows.score()
    of_run = callbacks.of_run(config.run, logdir, tensorboard, more, of_levels)
    return Receivers(of_run, evaluator, evaluations)


def _publisher(
    evaluations: EvaluationRows | None,
    tensorboard: TensorBoardWriter,
    wandb: WandbWriter | None,
) -> Callable[[Result, int], None]:
    """Returns the function that shows the evaluator's results in files, TensorBoard and W&B."""

    def publish(result: Result, environment_frames: int) -> None:
        if result.rows and evaluations is not None:
            evaluations.add(result.rows)
        if not result.video:
            return
        gif = Path(result.gif).read_bytes()
        tensorboard.add_gif("video/game", gif, result.environment_frames)
        if wandb is not None:
            caption = f"{result.environment_frames:,} frames"
            wandb.add_video("video/game", Path(result.video), environment_frames, caption)

    return publish


def _normalizer(config: Config) -> Callable[[int, float], float | None]:
    levels = suites.levels(config.environment)
    return lambda index, score: suites.normalized(levels[index], score)
