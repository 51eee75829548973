"""Learning curves as SVG, drawn with classes: the page's style sheet gives the colours."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import NamedTuple

import numpy as np

from impala_tf.reporting.numbers import mean_return
from impala_tf.reporting.summary import MeanCurve, Target

WIDTH, HEIGHT = 480, 320  # of the picture's coordinates, not pixels
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 22, 30, 46  # margins
COLOURS = 6
"""Series beyond these repeat the colours; all have a dash pattern as well."""


class Series(NamedTuple):
    """A line and the band around it."""

    label: str
    number: int  # picks colour and dash pattern
    curve: MeanCurve


class Axis(NamedTuple):
    """A linear axis: values from `low` to `high` lie at coordinates `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    def at(self, values: np.ndarray) -> np.ndarray:
        """Returns the coordinates of values."""
        share = (values - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Returns about five round values on the axis."""
        step = _round_step((self.high - self.low) / 5)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [number * step for number in range(first, last + 1)]


def draw(
    series: Sequence[Series],
    x_label: str,
    x_tick: Callable[[float], str],
    target: Target | None,
    description: str,
) -> str:
    """Returns an <svg> of mean returns over frames or minutes.

    Args:
      series: at least one.
      x_label: below the horizontal axis.
      x_tick: writes a value of that axis.
      target: drawn as a horizontal line.
      description: what the picture shows, for people who do not see it.
    """
    x, y = _axes(series, target)
    parts = [
        *_grid(x, y, x_tick),
        _text(_LEFT - 8, 16, "mean return of the last 100 games", "label start"),
        _text((_LEFT + WIDTH - _RIGHT) / 2, HEIGHT - 8, x_label, "label middle"),
        *([_target(target, y)] if target else []),
        *(_band(each, x, y) for each in series if np.any(each.curve.high > each.curve.low)),
        *(_line(each, x, y) for each in series),
    ]
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"'
        f' aria-label="{escape(description)}">{"".join(parts)}</svg>'
    )


def key(number: int) -> str:
    """Returns a small <svg> of a series' line, for legends and tables."""
    return (
        '<svg class="key" viewBox="0 0 28 10" aria-hidden="true">'
        f'<path class="line {_classes(number)}" d="M1 5H27"/></svg>'
    )


def _axes(series: Sequence[Series], target: Target | None) -> tuple[Axis, Axis]:
    curves = [each.curve for each in series]
    low, high = min(c.low.min() for c in curves), max(c.high.max() for c in curves)
    if target is not None:
        low, high = min(low, target.mean_return), max(high, target.mean_return)
    room = 0.06 * (high - low) or 1.0
    end = max(curve.x[-1] for curve in curves)
    return (
        Axis(0.0, float(end), _LEFT, WIDTH - _RIGHT),
        Axis(float(low - room), float(high + room), HEIGHT - _BOTTOM, _TOP),
    )


def _grid(x: Axis, y: Axis, x_tick: Callable[[float], str]) -> list[str]:
    parts = []
    for value in y.ticks():
        at = float(y.at(np.array(value)))
        parts.append(f'<path class="grid" d="M{x.start} {at:.1f}H{x.end}"/>')
        parts.append(_text(_LEFT - 8, at + 4, _y_tick(value, y), "tick end"))
    for value in x.ticks():
        at = float(x.at(np.array(value)))
        parts.append(f'<path class="grid" d="M{at:.1f} {y.start}v5"/>')
        parts.append(_text(at, y.start + 18, x_tick(value), "tick middle"))
    return [*parts, f'<path class="axis" d="M{x.start} {y.start}H{x.end}"/>']


def _y_tick(value: float, y: Axis) -> str:
    step = _round_step((y.high - y.low) / 5)
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    return f"{round(value, digits) + 0.0:,.{digits}f}".replace("-", "\u2212")


def _target(target: Target, y: Axis) -> str:
    at = float(y.at(np.array(target.mean_return)))
    return f'<path class="target" d="M{_LEFT} {at:.1f}H{WIDTH - _RIGHT}"/>' + _text(
        _LEFT + 4, at - 5, f"return {mean_return(target.mean_return)}", "tick start"
    )


def _band(each: Series, x: Axis, y: Axis) -> str:
    across = np.concatenate([each.curve.x, each.curve.x[::-1]])
    up = np.concatenate([each.curve.high, each.curve.low[::-1]])
    return f'<path class="band {_classes(each.number)}" d="{_path(x.at(across), y.at(up))}Z"/>'


def _line(each: Series, x: Axis, y: Axis) -> str:
    last = mean_return(float(each.curve.mean[-1]))
    return (
        f'<path class="line {_classes(each.number)}"'
        f' d="{_path(x.at(each.curve.x), y.at(each.curve.mean))}">'
        f"<title>{escape(each.label)}: {last} at the end</title></path>"
    )


def _path(x: np.ndarray, y: np.ndarray) -> str:
    return "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in zip(x, y, strict=True))


def _text(x: float, y: float, text: str, classes: str) -> str:
    return f'<text class="{classes}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'


def _classes(number: int) -> str:
    return f"c{number % COLOURS} d{number % COLOURS}"


def _round_step(step: float) -> float:
    """Returns 1, 2 or 5 times a power of ten, at least `step`."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= step * (1 - 1e-9))
