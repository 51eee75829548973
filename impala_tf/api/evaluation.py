"""Playing whole games with a trained agent: `evaluate`."""

from __future__ import annotations

import dataclasses
import os
from typing import Any, Literal

from impala_tf.api.agent import given_for
from impala_tf.config import ConfigError
from impala_tf.environments import suites
from impala_tf.processes import evaluate_main


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Whole games, unclipped returns."""

    mean: float
    median: float
    std: float
    """Of the sample."""
    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    """Agent steps."""
    normalized_mean: float | None
    """In the level's published range, which is 0 to 1; None if none is published."""
    protocol: str
    checkpoint: str
    environment_frames: int
    details: dict[str, Any]
    """What evaluation.json holds, such as games on unseen levels."""


def evaluate(
    logdir: str | os.PathLike[str],
    num_episodes: int = 10,
    *,
    policy: Literal["sampled", "greedy"] = "sampled",
    checkpoint: Literal["newest", "best"] = "newest",
    trust_level_module: bool = False,
    **flags: Any,
) -> Evaluation:
    """Plays whole games with the agent of a run, and writes evaluation.json there.

    The agent of an exported folder plays without TensorFlow, and no evaluation.json is written.

    Args:
      logdir: of the run, or an exported folder.
      num_episodes: how many games.
      policy: greedy: the most likely action; sampled: drawn from the policy, as in training.
      checkpoint: best: the one that was written at the highest mean return.
      trust_level_module: whether modules may be imported that the run names. Their code runs here.
      flags: others of `impala test`, such as `seed=2` or `video=True`, which writes a video there.

    Raises:
      ConfigError: there is no agent, it learned several levels (use `impala test`),
        or a module of it is not trusted.
    """
    of_test = {"test_num_episodes": num_episodes, "test_policy": policy}
    given = given_for(logdir, checkpoint, trust_level_module, {**flags, **of_test})
    trained = evaluate_main.load(given)
    if len(trained.spec.levels) > 1:
        raise ConfigError(f"--logdir={trained.flags['logdir']}: it learned several levels; play"
                          " them with --mode=test")  # fmt: skip
    result, _ = evaluate_main.played(trained)
    if not trained.is_exported:
        evaluate_main.write(trained, result)
    if trained.evaluation.video:
        evaluate_main.write_films(trained)
    return Evaluation(
        mean=result["mean"],
        median=result["median"],
        std=result["std"],
        returns=tuple(result["episode_returns"]),
        lengths=tuple(result["episode_lengths"]),
        normalized_mean=suites.normalized(trained.environment, result["mean"]),
        protocol=result["protocol"],
        checkpoint=result["checkpoint"],
        environment_frames=result["environment_frames"],
        details=result,
    )
