"""Playing whole games with a trained agent: `evaluate`."""

from __future__ import annotations

import dataclasses
import os
from typing import Any, Literal

from impala_tf.api.agent import given_for
from impala_tf.config import ConfigError, python_values
from impala_tf.environments import suites
from impala_tf.evaluation import games
from impala_tf.processes import evaluate_main


@dataclasses.dataclass(frozen=True, repr=False)
class Evaluation:
    """The results of whole games, with unclipped returns."""

    mean: float
    median: float
    std: float
    """The standard deviation of the sample."""
    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    """In agent steps."""
    normalized_mean: float | None
    """The mean, scaled so that the level's published range is 0 to 1; None if none is published."""
    protocol: str
    checkpoint: str
    environment_frames: int
    details: dict[str, Any]
    """The content of evaluation.json, such as games on unseen levels."""

    def __repr__(self) -> str:
        games = f"{len(self.returns)} game{'s' * (len(self.returns) > 1)}"
        level = self.details["level_name"]
        return f"Evaluation({level!r}, mean {self.mean:.2f}, std {self.std:.2f}, {games})"


@python_values.errors_name_arguments()
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

    A game that does not end is cut after 100,000 agent steps, or at the level's time limit if that
    is longer; a line says so, and `details` has "games_cut".
    The agent of an exported folder plays without TensorFlow, and no evaluation.json is written.

    Args:
      logdir: the run's logdir, or an exported folder.
      num_episodes: how many games to play.
      policy: greedy: the most likely action; sampled: drawn from the policy, as in training.
      checkpoint: for a run, which checkpoint. best: the one with the highest mean return.
      trust_level_module: whether to import modules that the run names. Their code runs here.
      flags: other flags of `impala test`, such as `seed=2`, or `video=True`, which writes a video
        to the logdir.

    Raises:
      ConfigError: there is no agent, it learned several levels (use `impala test`), one of its
        modules is not trusted, or a flag is wrong.
    """
    of_test = dict(test_num_episodes=num_episodes, test_policy=policy, **flags)
    trained = evaluate_main.load(given_for(logdir, checkpoint, trust_level_module, of_test))
    if len(trained.spec.levels) > 1:
        raise ConfigError(f"--logdir={trained.flags['logdir']}: it learned several levels; play"
                          " them with `impala test`")  # fmt: skip
    result, _ = evaluate_main.evaluate(trained)
    if note := games.cut_note(result):
        print(f"{result['level_name']}: {note}")
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
