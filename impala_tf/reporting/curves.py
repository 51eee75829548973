"""The learning curves of a level as SVG: mean return over frames and over minutes.

Curves have classes; the style sheet of the page or file sets their colours.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from html import escape

import numpy as np

from impala_tf.reporting import facts, numbers, style
from impala_tf.reporting.summary import (
    LevelSummary,
    MeanCurve,
    Target,
    evaluation_curve,
    mean_curve,
)

_WIDTH, _HEIGHT = 480, 320  # of a chart, in its own coordinates, not pixels
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 22, 30, 46  # the margins of a chart
_ROW, _MARGIN = 26, 24  # for a picture with several charts
_CHARACTER = 7.2  # the width of a character, about, at 13 px
_AXES = (
    ("frames", "environment frames", numbers.tick),
    ("minutes", "minutes of training", numbers.plain),
)


def charts(summary: LevelSummary) -> list[str]:
    """Returns an <svg> for each axis, and one of evaluations; [] if no setting has a curve."""
    drawn = []
    for axis, label, tick in _AXES:
        lines = [
            _Line(setting.label, number, curve)
            for number, setting in enumerate(summary.level.settings)
            if (curve := mean_curve(setting, axis)) is not None
        ]
        if lines:
            description = facts.description(summary, label)
            y_label = facts.axis(summary)
            drawn.append(_chart(lines, label, tick, summary.target, description, y_label))
    return [*drawn, *_evaluations(summary)]


def _evaluations(summary: LevelSummary) -> list[str]:
    """Returns an <svg> of the evaluations (--eval_every) over pale training curves; [] if none."""
    axis, label, tick = _AXES[0]
    pale, lines = [], []
    for number, setting in enumerate(summary.level.settings):
        if (curve := mean_curve(setting, axis, evaluation_curve)) is not None:
            lines.append(_Line(setting.label, number, curve))
            if (trained := mean_curve(setting, axis)) is not None:
                pale.append(_Line(setting.label, number, trained, faint=True))
    if not lines:
        return []
    played = facts.played_on(summary)
    description = f"{summary.level.name}: evaluations on {played} over {label}, beside training."
    return [_chart([*pale, *lines], label, tick, None, description, f"mean return on {played}")]


def key(number: int) -> str:
    """Returns a small <svg> of a setting's line, for legends and tables."""
    return (
        '<svg class="key" viewBox="0 0 28 10" aria-hidden="true">'
        f'<path class="line {_classes(number)}" d="M1 5H27"/></svg>'
    )


def picture(summary: LevelSummary) -> str | None:
    """Returns an SVG file with legend and charts, for Markdown; None if there are no curves."""
    drawn = charts(summary)
    if not drawn:
        return None
    width = _MARGIN + len(drawn) * (_WIDTH + _MARGIN)
    legend, top = _legend(summary, width)
    placed = "".join(
        f'<g transform="translate({_MARGIN + number * (_WIDTH + _MARGIN)} {top})">'
        f"{_sized(chart, _WIDTH, _HEIGHT)}</g>"
        for number, chart in enumerate(drawn)
    )
    height = top + _HEIGHT + _MARGIN / 2
    described = escape(facts.description(summary, "frames and minutes"))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:g}"'
        f' width="{width}" height="{height:g}" role="img" aria-label="{described}">\n'
        f"<style>\n{style.THEMES}{style.CHART}</style>\n"
        f'<rect width="100%" height="100%" rx="6" style="fill: var(--page)"/>\n'
        f'<g class="chart">{legend}</g>\n{placed}\n</svg>\n'
    )


def _legend(summary: LevelSummary, width: float) -> tuple[str, float]:
    """Returns the legend, in as many rows as it needs, and where it ends."""
    x, y, parts = float(_MARGIN), 14.0, []
    for number, setting in enumerate(summary.level.settings):
        needed = 36 + _CHARACTER * len(setting.label) + _MARGIN
        if x > _MARGIN and x + needed > width:
            x, y = float(_MARGIN), y + _ROW
        parts.append(
            f'<g transform="translate({x:g} {y:g})">{_sized(key(number), 28, 10)}'
            f'<text class="label" x="36" y="9">{escape(setting.label)}</text></g>'
        )
        x += needed
    return "".join(parts), y + _ROW


def _sized(svg: str, width: int, height: int) -> str:
    return svg.replace("<svg ", f'<svg width="{width}" height="{height}" ', 1)


@dataclasses.dataclass(frozen=True)
class _Line:
    """The line of a setting and the band around it; the number picks colour and dash pattern."""

    label: str
    number: int
    curve: MeanCurve
    faint: bool = False  # for comparison only: pale, and without a band


@dataclasses.dataclass(frozen=True)
class Axis:
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


def _chart(
    lines: Sequence[_Line],
    x_label: str,
    x_tick: Callable[[float], str],
    target: Target | None,
    description: str,
    y_label: str,
) -> str:
    """Returns an <svg> of mean returns over frames or minutes.

    Args:
      lines: one line or more.
      x_label: the label below the horizontal axis.
      x_tick: formats a value of that axis.
      target: the return to draw as a horizontal line.
      description: the picture in words, for people who cannot see it.
      y_label: the label above the vertical axis.
    """
    x, y = _axes(lines, target)
    parts = [
        *_grid(x, y, x_tick),
        _text(_LEFT - 8, 16, y_label, "label start"),
        _text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 8, x_label, "label middle"),
        *([_target(target, y)] if target else []),
        *(_band(line, x, y) for line in lines if _has_band(line)),
        *(_path_of(line, x, y) for line in lines),
    ]
    return (
        f'<svg class="chart" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img"'
        f' aria-label="{escape(description)}">{"".join(parts)}</svg>'
    )


def _axes(lines: Sequence[_Line], target: Target | None) -> tuple[Axis, Axis]:
    curves = [line.curve for line in lines]
    low = min(curve.low.min() for curve in curves)
    high = max(curve.high.max() for curve in curves)
    if target is not None:
        low, high = min(low, target.mean_return), max(high, target.mean_return)
    room = 0.06 * (high - low) or 1.0
    end = max(curve.x[-1] for curve in curves)
    return (
        Axis(0.0, float(end), _LEFT, _WIDTH - _RIGHT),
        Axis(float(low - room), float(high + room), _HEIGHT - _BOTTOM, _TOP),
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
    return f'<path class="target" d="M{_LEFT} {at:.1f}H{_WIDTH - _RIGHT}"/>' + _text(
        _LEFT + 4, at - 5, f"return {numbers.target(target.mean_return)}", "tick start"
    )


def _band(line: _Line, x: Axis, y: Axis) -> str:
    across = np.concatenate([line.curve.x, line.curve.x[::-1]])
    up = np.concatenate([line.curve.high, line.curve.low[::-1]])
    return f'<path class="band {_classes(line.number)}" d="{_path(x.at(across), y.at(up))}Z"/>'


def _has_band(line: _Line) -> bool:
    return not line.faint and bool(np.any(line.curve.high > line.curve.low))


def _path_of(line: _Line, x: Axis, y: Axis) -> str:
    """Returns the line, which is pale where some seeds have finished."""
    curve = line.curve
    last = numbers.mean_return(float(curve.mean[-1]))
    whole = max(2, int(np.searchsorted(curve.x, curve.measured_until * (1 + 1e-9), side="right")))
    # Runs end with a whole batch, and so some frames apart: that is no end to show.
    if line.faint or whole == len(curve.x) - 1:
        whole = len(curve.x)
    parts = [(slice(0, whole), " pale" * line.faint)]
    if whole < len(curve.x):
        parts.append((slice(whole - 1, None), " pale"))
    return "".join(
        f'<path class="line {_classes(line.number)}{pale}"'
        f' d="{_path(x.at(curve.x[part]), y.at(curve.mean[part]))}">'
        f"<title>{escape(line.label)}: {last} at the end</title></path>"
        for part, pale in parts
    )


def _path(x: np.ndarray, y: np.ndarray) -> str:
    return "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in zip(x, y, strict=True))


def _text(x: float, y: float, text: str, classes: str) -> str:
    return f'<text class="{classes}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'


def _classes(number: int) -> str:
    # When the colours begin again, each meets the next dash pattern.
    dash = (number + number // style.COLOURS) % style.DASHES
    return f"c{number % style.COLOURS} d{dash}"


def _round_step(step: float) -> float:
    """Returns 1, 2 or 5 times a power of ten, at least `step`."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= step * (1 - 1e-9))
