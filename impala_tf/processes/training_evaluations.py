"""--eval_every: regular games with the newest policy, played beside the learner."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from impala_tf.config import Config
from impala_tf.environments import suites
from impala_tf.logdir import Logdir
from impala_tf.monitoring.notes import FOR_USER
from impala_tf.processes import beside
from impala_tf.processes.beside import Beside, Work

MODULE = "impala_tf.processes.eval_every_main"
NAME = "evaluation"
_LONGEST_S = 3600.0  # for each level
_LONGEST_END_S = 900.0  # 50 games of Atari with a residual network take five minutes

_log = logging.getLogger("impala_tf.learner")


class Evaluation(NamedTuple):
    """The games of a checkpoint; the process that played them prints this as JSON."""

    environment_frames: int
    """The frames that its policy was trained for."""
    rows: Sequence[Mapping[str, Any]]
    """A row of evaluation.csv for each level."""
    notes: Sequence[str] = ()
    """What the user should know of the levels."""


class TrainingEvaluations(Beside):
    """Starts a process for each evaluation, and passes on its results.

    Args:
      config: the run's config.
      logdir: the run's folder.
      add: called with the rows of a checkpoint.
      command: the command that plays the games; () for the real one.
    """

    def __init__(
        self,
        config: Config,
        logdir: Logdir,
        add: Callable[[Sequence[Mapping[str, Any]]], None],
        command: tuple[str, ...] = (),
    ) -> None:
        assert config.run.eval_every is not None
        self._add = add
        super().__init__(
            Work(
                name=NAME,
                flag="eval_every",
                every=config.run.eval_every,
                log=logdir.processes / "evaluation.log",
                command=command or beside.command(MODULE, config),
                longest_s=_LONGEST_S * len(suites.levels(config.environment)),
                longest_end_s=_LONGEST_END_S,
                last=True,
            )
        )

    def publish(self, result: Mapping[str, Any], environment_frames: int) -> None:
        """Passes on the rows."""
        evaluation = Evaluation(**result)
        self._add(evaluation.rows)
        for note in evaluation.notes:
            _log.warning("%s", note, extra=FOR_USER)
        for row in evaluation.rows:
            _log.info(
                "evaluation at %s frames: %s: mean return %.2f in %d games, %s; %s",
                f"{evaluation.environment_frames:,}",
                row["level_name"],
                row["return_mean"],
                row["episodes"],
                row["played"],
                row["protocol"],
            )
