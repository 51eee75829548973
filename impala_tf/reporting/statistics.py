"""Statistics of a few seeds: intervals, robust means, and which differences chance can explain.

Intervals, the interquartile mean and the probability of improvement are those of Agarwal et al.
(2021), "Deep Reinforcement Learning at the Edge of the Statistical Precipice", and of its package
rliable: a stratified percentile bootstrap, whose strata are the settings. With two or three seeds,
such intervals are just the range, and too narrow. So winners are named not by intervals, but by
Welch's t-test, as Colas et al. (2019) recommend in "A Hitchhiker's Guide to Statistical Comparisons
of Reinforcement Learning Algorithms".
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy.stats

FEWEST_SEEDS = 3  # of each setting, for comparisons
FEWEST_OF_INTERVALS = 4  # with fewer, an interval is their range, and the middle half all of them
ERROR_RATE = 0.05  # of all comparisons of a level together


def interval(
    statistic: Callable[..., np.ndarray], *samples: Sequence[float] | np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns both ends of the 95 % bootstrap interval of a statistic, the same in each call.

    Args:
      statistic: takes the samples and `axis`, the axis of the seeds.
      *samples: one [seeds, ...] per stratum, two seeds or more each; each is resampled separately.
    """
    found = scipy.stats.bootstrap(
        samples, statistic, n_resamples=2000, vectorized=True, axis=0, method="percentile", rng=0
    ).confidence_interval
    return found.low, found.high


def spread(statistic: Callable[..., np.ndarray], values: Any) -> tuple[Any, Any]:
    """Returns both ends of the 95 % interval of a statistic; of few seeds, the lowest and highest.

    Args:
      statistic: as `interval` takes it.
      values: [seeds, ...].
    """
    if len(values) >= FEWEST_OF_INTERVALS:
        return interval(statistic, values)
    return np.min(values, axis=0), np.max(values, axis=0)


interquartile_mean = functools.partial(scipy.stats.trim_mean, proportiontocut=0.25)
"""Returns the mean of the middle half of the seeds, rounded up to whole seeds on both sides."""


def improvement(first: np.ndarray, second: np.ndarray, axis: int = 0) -> np.ndarray:
    """Returns how often a value of the first is higher than one of the second; ties count half."""
    first, second = np.moveaxis(first, axis, -1), np.moveaxis(second, axis, -1)
    signs = np.sign(first[..., :, None] - second[..., None, :])
    return (0.5 * (signs + 1)).mean(axis=(-1, -2))


def welch_p_value(first: Sequence[float], second: Sequence[float]) -> float:
    """Returns the two-sided p-value of Welch's t-test, of two seeds or more each."""
    moments = [f(x) for x in (first, second) for f in (np.mean, lambda x: np.std(x, ddof=1), len)]
    p_value = scipy.stats.ttest_ind_from_stats(*moments, equal_var=False).pvalue
    return 1.0 if np.isnan(p_value) else float(p_value)  # all seeds of both have the same value


def leaders(settings: Sequence[Sequence[float]]) -> list[int]:
    """Returns the indices of settings that may be the best, the one with the highest mean first.

    The others are those whose lower mean chance can explain. Welch's tests of all pairs share the
    error rate of 5 % (Bonferroni).

    Args:
      settings: the values of each setting's seeds, higher is better; at least one each.
    """
    best, *others = np.argsort([-np.mean(values) for values in settings], kind="stable").tolist()
    rate = ERROR_RATE / max(1, len(settings) * (len(settings) - 1) / 2)

    def is_worse(number: int) -> bool:
        pair = settings[best], settings[number]
        return min(map(len, pair)) >= FEWEST_SEEDS and welch_p_value(*pair) <= rate

    return [best, *(number for number in others if not is_worse(number))]
