"""Statistics of a few seeds: intervals, robust means, and which differences chance can explain.

Intervals, the interquartile mean and the probability of improvement are those of Agarwal et al.
(2021), "Deep Reinforcement Learning at the Edge of the Statistical Precipice", and of its package
rliable: a stratified percentile bootstrap, whose strata are the settings. With very few seeds, such
intervals are too narrow; with two or three, they are just the range. So winners are named not by
bootstrap intervals, but by Welch's t-test, which keeps its error rate with three seeds or more; it
is recommended by Colas et al. (2019), "A Hitchhiker's Guide to Statistical Comparisons of
Reinforcement Learning Algorithms".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

FEWEST_SEEDS = 3  # of each setting, for comparisons
ERROR_RATE = 0.05  # of all comparisons of a level together
CONFIDENCE = 0.95
_RESAMPLES = 2000
_SEED = 0  # fixed, so that the same runs give the same report


class Interval(NamedTuple):
    """A 95 % bootstrap interval."""

    low: float
    high: float


class Comparison(NamedTuple):
    """Two settings, by the final returns of their seeds."""

    improvement: float  # probability that a run of the first ends higher than one of the second
    interval: Interval  # of that probability
    p_value: float  # of Welch's t-test: how often chance alone causes such a difference


def bounds(
    statistic: Callable[..., np.ndarray], *samples: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns both ends of the 95 % percentile bootstrap interval of a statistic.

    Args:
      statistic: takes the resampled samples, each [resamples, seeds, ...]; returns
        [resamples, ...].
      *samples: one array [seeds, ...] per stratum; each is resampled separately.
    """
    rng = np.random.default_rng(_SEED)
    drawn = [
        sample[rng.integers(len(sample), size=(_RESAMPLES, len(sample)))] for sample in samples
    ]
    outside = (1 - CONFIDENCE) / 2
    low, high = np.quantile(statistic(*drawn), [outside, 1 - outside], axis=0)
    return low, high


def mean_interval(values: Sequence[float]) -> Interval | None:
    """Returns the interval of a mean over seeds; None if there is only one seed."""
    return _interval(mean, values) if len(values) > 1 else None


def iqm_interval(values: Sequence[float]) -> Interval | None:
    """Returns the interval of an interquartile mean; None below three seeds."""
    return _interval(interquartile_mean, values) if len(values) >= FEWEST_SEEDS else None


def compare(first: Sequence[float], second: Sequence[float]) -> Comparison | None:
    """Returns how two settings compare; None if one of them has fewer than three seeds."""
    if min(len(first), len(second)) < FEWEST_SEEDS:
        return None
    x, y = np.asarray(first, np.float64), np.asarray(second, np.float64)
    improvement = float(probability_of_improvement(x[None], y[None])[0])
    low, high = bounds(probability_of_improvement, x, y)
    return Comparison(improvement, Interval(float(low), float(high)), welch_p_value(x, y))


def mean(samples: np.ndarray) -> np.ndarray:
    """Returns the means of [resamples, seeds, ...] over the seeds."""
    return samples.mean(axis=1)


def interquartile_mean(samples: np.ndarray) -> np.ndarray:
    """Returns the means of the middle halves of [resamples, seeds].

    If the number of seeds is not a multiple of four, the seeds at the edges of the middle half
    count in part. (SciPy's trim_mean, which rliable uses, then cuts off fewer seeds.)
    """
    seeds = samples.shape[1]
    edges = np.arange(seeds + 1) / seeds
    weights = np.diff(np.clip(edges, 0.25, 0.75))
    return np.sort(samples, axis=1) @ weights / weights.sum()


def probability_of_improvement(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Returns, for [resamples, seeds] of both, how often the first is higher; ties count half."""
    difference = first[:, :, None] - second[:, None, :]
    return (0.5 * (np.sign(difference) + 1)).mean(axis=(1, 2))


def welch_p_value(first: np.ndarray, second: np.ndarray) -> float:
    """Returns the two-sided p-value of Welch's t-test for two samples [seeds], two seeds or more.

    Samples without any spread differ with certainty, or not at all.
    """
    errors = [sample.var(ddof=1) / len(sample) for sample in (first, second)]
    difference, variance = float(first.mean() - second.mean()), sum(errors)
    if variance == 0:
        return float(difference == 0)
    freedom = variance**2 / sum(
        error**2 / (len(sample) - 1) for error, sample in zip(errors, (first, second), strict=True)
    )
    # Student's distribution is an integral of a power of the cosine, up to this angle.
    angle = float(np.arctan(abs(difference) / np.sqrt(variance * freedom)))

    def area(start: float, end: float) -> float:
        middles = start + (np.arange(10_000) + 0.5) * (end - start) / 10_000
        return float((np.cos(middles) ** (freedom - 1)).mean() * (end - start))

    outside = area(angle, np.pi / 2)
    return outside / (outside + area(0.0, angle))


def leaders(settings: Sequence[Sequence[float]]) -> list[int]:
    """Returns the indices of settings that may be the best, the one with the highest mean first.

    The others are those whose lower mean chance can explain. Welch's tests of all pairs share the
    error rate of 5 % (Bonferroni).

    Args:
      settings: the values of each setting's seeds, higher is better; at least one each.
    """
    means = [float(np.mean(values)) for values in settings]
    best = int(np.argmax(means))
    pairs = max(1, len(settings) * (len(settings) - 1) // 2)

    def is_worse(number: int) -> bool:
        comparison = compare(settings[best], settings[number])
        return comparison is not None and comparison.p_value <= ERROR_RATE / pairs

    others = [n for n in range(len(settings)) if n != best and not is_worse(n)]
    return [best, *sorted(others, key=lambda number: -means[number])]


def _interval(statistic: Callable[[np.ndarray], np.ndarray], values: Sequence[float]) -> Interval:
    low, high = bounds(statistic, np.asarray(values, np.float64))
    return Interval(float(low), float(high))
