"""Figures as text for people."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from impala_tf.reporting import statistics

NOTHING = "–"
_UNITS = ((1e9, " G"), (1e6, " M"), (1e3, " k"))
whole = "{:,.0f}".format  # 12,345


def count(value: float) -> str:
    """Returns a count with three digits: 950, 45.1 k, 1.69 M."""
    for size, unit in _UNITS:
        if abs(value) >= 0.9995 * size:  # 999,600 has three digits as 1 M, not as 1000 k
            return f"{value / size:.3g}{unit}"
    return f"{value:.0f}"


def mean_return(value: float) -> str:
    """Returns a mean return: -20.5, 0.13, 1,234."""
    return f"{round(value, decimals(value)) + 0.0:,.{decimals(value)}f}"


def decimals(mean_return: float) -> int:
    """Returns how many decimals of a mean return are worth showing: two digits of small ones."""
    size = abs(mean_return)
    if 1e-6 <= size < 1:
        return max(2, 1 - math.floor(math.log10(size)))
    return 2 if size < 10 else 1 if size < 1000 else 0


def spread(
    values: Sequence[float],
    show: Callable[[float], str],
    statistic: Callable[..., np.ndarray] = np.mean,
) -> str:
    """Returns a mean over seeds with its 95 % interval, 120 (100 to 140); one seed has none."""
    mean = show(float(statistic(np.array(values))))
    if len(values) == 1:
        return mean
    low, high = statistics.interval(statistic, values)
    return f"{mean} ({show(float(low))} to {show(float(high))})"
