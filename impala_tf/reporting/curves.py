"""The pictures of a level: mean return over frames and over minutes."""

from __future__ import annotations

from html import escape

from impala_tf.reporting import chart, facts, numbers, style
from impala_tf.reporting.summary import mean_curve
from impala_tf.reporting.table import LevelSummary

_AXES = (
    ("frames", "environment frames", numbers.tick),
    ("minutes", "minutes of training", numbers.plain),
)
_ROW, _MARGIN = 26, 24
_CHARACTER = 7.2  # about the width of one, at 13 px


def charts(summary: LevelSummary) -> list[str]:
    """Returns an <svg> for each axis; [] if no setting has a curve."""
    found = []
    for axis, label, tick in _AXES:
        series = [
            chart.Series(setting.label, number, curve)
            for number, setting in enumerate(summary.level.settings)
            if (curve := mean_curve(setting, axis)) is not None
        ]
        if series:
            description = facts.description(summary, label)
            found.append(chart.draw(series, label, tick, summary.target, description))
    return found


def picture(summary: LevelSummary) -> str | None:
    """Returns an SVG file with legend and charts, for Markdown; None if there are no curves."""
    drawn = charts(summary)
    if not drawn:
        return None
    width = _MARGIN + len(drawn) * (chart.WIDTH + _MARGIN)
    legend, top = _legend(summary, width)
    placed = "".join(
        f'<g transform="translate({_MARGIN + number * (chart.WIDTH + _MARGIN)} {top})">'
        f"{_sized(each, chart.WIDTH, chart.HEIGHT)}</g>"
        for number, each in enumerate(drawn)
    )
    height = top + chart.HEIGHT + _MARGIN / 2
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
            f'<g transform="translate({x:g} {y:g})">{_sized(chart.key(number), 28, 10)}'
            f'<text class="label" x="36" y="9">{escape(setting.label)}</text></g>'
        )
        x += needed
    return "".join(parts), y + _ROW


def _sized(svg: str, width: int, height: int) -> str:
    return svg.replace("<svg ", f'<svg width="{width}" height="{height}" ', 1)
