"""Figures and other values as text for people."""

from __future__ import annotations

import math
import re
from typing import Any

from markupsafe import Markup

from impala_tf.printable import printable

NOTHING = "–"
_UNITS = ((1e9, " G"), (1e6, " M"), (1e3, " k"))
_SPECIAL = re.compile(r"[\\`*\[\]<>|&~]")
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


def escape_in_markdown(value: Any) -> Markup:
    """Returns a value as text without markup, links, HTML or a table's lines.

    As `finalize` of a `jinja2.Environment(autoescape=True)`, it does so with all that a template
    shows, but for `safe`.
    """
    if isinstance(value, Markup):
        return value
    return Markup(_SPECIAL.sub(r"\\\g<0>", printable(str(value))))
