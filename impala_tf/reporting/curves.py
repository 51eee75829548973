"""Draws learning curves with Matplotlib, as SVG."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, MaxNLocator

from impala_tf.reporting.comparison import Level, mean_curve
from impala_tf.reporting.texts import mean_return

# Six colours that people with any kind of colour vision can tell apart by lightness and hue. When
# they begin again, each has another dash pattern, in points.
_COLOURS = ("#0060a8", "#c2410c", "#00785c", "#9b2c7f", "#7a6000", "#4b4b57")
_DASHES = ((), (7, 3), (2, 3), (9, 3, 2, 3), (4, 4), (12, 4))
_GREY = "#5a6270"
_PALE = 0.35
_LEGEND_COLUMNS = 4
_STYLE = Path(__file__).with_name("templates") / "curves.mplstyle"

Panel = tuple[str, str]
"""What a chart shows: see the arguments of `comparison.mean_curve`."""
_PANELS: tuple[Panel, ...] = (
    ("frames", "curve"),
    ("minutes", "curve"),
    ("frames", "evaluation"),
    ("frames", "entropy"),
    ("frames", "kl"),
    ("frames", "rate"),
)
_TITLES = {
    "entropy": "entropy of the policy, nats",
    "kl": "KL of the acting policy from the learner's, nats",
    "rate": "agent steps per second",
}
_COLUMNS = 2


def style_of(number: int) -> tuple[str, tuple[int, ...]]:
    """Returns colour and dash pattern of a level's setting."""
    dashes = (number + number // len(_COLOURS)) % len(_DASHES)
    return _COLOURS[number % len(_COLOURS)], _DASHES[dashes]


def panels_of(level: Level) -> list[Panel]:
    """Returns the charts of a level that have a line."""
    return [each for each in _PANELS if any(mean_curve(s, *each) for s in level.settings)]


def title_of(level: Level, panel: Panel) -> str:
    """Returns what the vertical axis of a chart has."""
    of_returns = {"curve": level.kind.value, "evaluation": f"mean return on {level.played}"}
    return (of_returns | _TITLES)[panel[1]]


def picture(level: Level) -> str | None:
    """Returns a level's charts with a legend as an SVG file; None if there are no curves."""
    panels = panels_of(level)
    return svg(level, panels, has_legend=True) if panels else None


def svg(level: Level, panels: Sequence[Panel], has_legend: bool = False) -> str:
    """Returns one <svg> with two charts in a row; without a legend, its background is clear."""
    labels = [setting.label for setting in level.settings] if has_legend else []
    with matplotlib.rc_context(fname=_STYLE):
        columns = min(_COLUMNS, len(panels))
        rows, legend_rows = (
            math.ceil(count / by)
            for count, by in ((len(panels), columns), (len(labels), _LEGEND_COLUMNS))
        )
        size = (4.8 * columns, 3.2 * rows + 0.25 * legend_rows)
        figure = Figure(figsize=size, layout="constrained")
        for number, panel in enumerate(panels, start=1):
            _draw(figure.add_subplot(rows, columns, number), level, panel)
        if has_legend:
            keys = [Line2D([], [], **_look(number)) for number in range(len(labels))]
            figure.legend(
                keys, labels, loc="outside upper left", ncols=_LEGEND_COLUMNS, frameon=False
            )
        text = io.StringIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(text, format="svg", metadata=nothing, transparent=not has_legend)
    return text.getvalue()[text.getvalue().index("<svg") :]


def _look(number: int) -> dict[str, Any]:
    colour, dashes = style_of(number)
    return {"color": colour, "linewidth": 1.6, "linestyle": (0, dashes) if dashes else "-"}


def _draw(axes: Axes, level: Level, panel: Panel) -> None:
    axis, which = panel
    for number, setting in enumerate(level.settings):
        if which == "evaluation" and (training := mean_curve(setting, axis, "curve")):
            axes.plot(training.x, training.mean, alpha=_PALE, **_look(number))
        if (curve := mean_curve(setting, axis, which)) is None:
            continue
        # The end is pale where some seeds have finished and keep their last return.
        end = max(1, int(np.searchsorted(curve.x, curve.measured_until, side="right")))
        axes.plot(curve.x[:end], curve.mean[:end], **_look(number))
        axes.plot(curve.x[end - 1 :], curve.mean[end - 1 :], alpha=_PALE, **_look(number))
        colour, _ = style_of(number)
        axes.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=0.16, linewidth=0)
    if which == "curve" and level.target is not None:
        axes.axhline(level.target, color=_GREY, linewidth=1, linestyle=":")
        across = axes.get_yaxis_transform()  # x in parts of the axis, y as data
        label = f"return {mean_return(level.target)}"
        axes.text(0.01, level.target, label, color=_GREY, va="bottom", transform=across)
    axes.set_title(title_of(level, panel), loc="left", fontsize="medium")
    axes.set_xlabel("environment frames" if axis == "frames" else "minutes of training")
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.yaxis.set_major_locator(MaxNLocator(6))
    if axis == "frames":
        axes.xaxis.set_major_formatter(EngFormatter())
    axes.grid(axis="y")
