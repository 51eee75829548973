"""The flags of modes that do not train; see `flags`."""

from __future__ import annotations

import dataclasses
from typing import Literal

from impala_tf.config.flag_types import Positive


@dataclasses.dataclass(frozen=True)
class EvaluationConfig:
    """--mode=test, and games while training (--eval_every)."""

    test_num_episodes: Positive[int] = 10
    """How many whole games to play."""
    test_policy: Literal["greedy", "sampled"] = "sampled"
    """greedy: the most likely action; sampled: drawn from the policy, as in training.
    For agents of dqn and pqn, sampled means that one action in a hundred is random."""
    checkpoint: Literal["newest", "best"] = "newest"
    """Checkpoint to play or export. best: the one with the highest mean return."""
    video: bool = False
    """Also write an mp4 of one game to the logdir. Only with --mode=test."""
    trust_level_module: bool = False
    """Import the Python modules that the run in --logdir names, such as those of its level, network
    or algorithm. Their code runs on this machine, so --mode=test, report and export ask first.
    Also use all flags of the file in --config: modules, --end_command, --mirror, machines."""


@dataclasses.dataclass(frozen=True)
class ExportConfig:
    """--mode=export and report."""

    to: str | None = None
    """export: a new folder for others: a model card with curve and evaluation, a model that plays
    without TensorFlow (--mode=test --logdir=FOLDER), and a SavedModel. The Hugging Face hub takes
    it as it is. It plays --test_num_episodes games for the card. Default: LOGDIR/export.
    report: where report.html, report.md and report.csv are written. Default: the --logdir; if there
    are several, runs/report."""
