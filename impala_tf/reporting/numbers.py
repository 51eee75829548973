"""Figures as text for people."""

from __future__ import annotations

import functools
from collections.abc import Callable

from impala_tf.reporting.summary import Spread, decimals

NOTHING = "–"
_UNITS = ((1e9, " G"), (1e6, " M"), (1e3, " k"))


def count(value: float) -> str:
    """Returns a count with three digits: 950, 45.1 k, 1.69 M."""
    size, unit, digits = _scale(value)
    return f"{value / size:.{digits}f}{unit}"


def count_spread(value: Spread) -> str:
    """Returns a count with its interval, both in one unit: 1.69 M (1.65 to 1.72 M)."""
    size, unit, digits = _scale(value.mean)
    mean = f"{value.mean / size:.{digits}f}{unit}"
    if value.interval is None:
        return mean
    low, high = (f"{end / size:.{digits}f}" for end in value.interval)
    return f"{mean} ({low} to {high}{unit})"


def tick(value: float) -> str:
    """Returns a round count on an axis: 0, 500 k, 2 M."""
    size, unit, _ = _scale(value)
    return f"{value / size:.4g}{unit}"


def whole(value: float) -> str:
    """Returns a whole number: 12,345."""
    return _signed(f"{value:,.0f}")


def tenths(value: float) -> str:
    """Returns a number with one decimal: 12.3."""
    return _signed(f"{value:,.1f}")


def plain(value: float) -> str:
    """Returns a number with the decimals that it needs: 5, 2.5, 12,345."""
    # The format .4g would write 10,000 as 1e+04.
    return whole(value) if abs(value) >= 1000 else _signed(f"{value:,.4g}")


def mean_return(value: float, like: float | None = None) -> str:
    """Returns a mean return: -20.5, 0.13, 1,234; with as many decimals as `like`, if given."""
    return _signed(f"{value:,.{decimals(value if like is None else like)}f}")


def target(value: float) -> str:
    """Returns the mean return of a target: 18.0, 0.125; with all decimals that it has."""
    own = len(f"{value:.9f}".rstrip("0").partition(".")[2])
    return _signed(f"{value:,.{max(own, decimals(value))}f}")


def spread(value: Spread | None, shown: Callable[[float], str]) -> str:
    """Returns a mean with its interval, 120 (100 to 140), formatted by `shown`; a dash for None."""
    if value is None:
        return NOTHING
    if value.interval is None:
        return shown(value.mean)
    low, high = map(shown, value.interval)
    return f"{shown(value.mean)} ({low} to {high})"


def return_spread(value: Spread | None) -> str:
    """Returns a mean return with its interval, with equally many decimals."""
    return spread(value, functools.partial(mean_return, like=value.mean if value else 0.0))


def optional(value: float | None, shown: Callable[[float], str]) -> str:
    """Returns a figure formatted by `shown`, or a dash if it is unknown."""
    return NOTHING if value is None else shown(value)


def _scale(value: float) -> tuple[float, str, int]:
    """Returns (unit's size, unit, decimals) that show three digits of a count."""
    for size, unit in _UNITS:
        # 999,600 has three digits as 1.00 M, not as 1000 k.
        if abs(value) >= 0.9995 * size:
            scaled = abs(value) / size
            return size, unit, 2 if scaled < 9.995 else 1 if scaled < 99.95 else 0
    return 1.0, "", 0


def _signed(text: str) -> str:
    """Returns a number with a real minus sign, as wide as a plus sign; zero gets none."""
    if text.startswith("-") and not text.strip("-0.,"):
        text = text[1:]
    return text.replace("-", "\u2212")
