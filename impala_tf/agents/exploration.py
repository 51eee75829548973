"""How much agents that learn Q-values explore: each environment with its own epsilon."""

from __future__ import annotations

import numpy as np

# Of agents that play without learning; in [0.001, 0.05] in the literature.
EVALUATION_EPSILON = 0.01
# An environment that explores more often than this tells little about how well the agent plays.
REPORTED_EPSILON = 0.05
# Of the environment that explores most, and how fast the others fall below it (arXiv 1803.00933).
_EPSILON, _EXPONENT = 0.4, 7.0


def epsilon_ladder(num_envs: int, actor: int, num_actors: int) -> np.ndarray:
    """Returns 0.4 ** (1 + 7 i / (M - 1)) for each environment i of one actor.

    The ladder of Ape-X (Horgan et al., 2018, arXiv 1803.00933, section 4.1), over all M
    environments of a run; each actor has rungs of all heights. If there is only one environment,
    it has the middle of the ladder.

    Args:
      num_envs: N, of each actor.
      actor: index of the actor; a larger one than the run has counts modulo `num_actors`.
      num_actors: how many the run has; 0: unknown, then each actor has a ladder of its own.

    Returns:
      float32 [N].
    """
    actors = max(1, num_actors)
    rungs = np.arange(num_envs) * actors + actor % actors
    highest = num_envs * actors - 1
    height = rungs / highest if highest else np.full(1, 0.5)
    return (_EPSILON ** (1.0 + _EXPONENT * height)).astype(np.float32)


def epsilons_of(levels: np.ndarray, num_levels: int, actor: int, num_actors: int) -> np.ndarray:
    """Returns how often each environment of an actor explores: every level has its own ladder.

    Args:
      levels: which level each environment plays, int [N]; as `suites.assigned` says.
      num_levels: of the run.
      actor, num_actors: as of `epsilon_ladder`.

    Returns:
      float32 [N].
    """
    epsilons = np.empty(len(levels), np.float32)
    for level in np.unique(levels):
        mine = levels == level
        sharing = max(1, len(range(level, num_actors, num_levels)))  # actors that play it
        epsilons[mine] = epsilon_ladder(mine.sum(), actor // num_levels, sharing)
    return epsilons


def reported(epsilons: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Returns which environments' games tell how well the agent plays, bool [N].

    Those that explore little; of a level that has none of these, all.

    Args:
      epsilons: float32 [N].
      levels: which level each environment plays, int [N].
    """
    little = epsilons <= REPORTED_EPSILON
    return little | ~np.isin(levels, levels[little])
