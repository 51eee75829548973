"""Makes values text in Markdown, as Jinja2 does in HTML."""

from __future__ import annotations

import re
from typing import Any

from markupsafe import Markup

from impala_tf.printable import printable

_SPECIAL = re.compile(r"[\\`*\[\]<>|&~]")


def escaped(value: Any) -> Markup:
    """Returns a value as text without markup, links, HTML or a table's lines.

    `jinja2.Environment(autoescape=True, finalize=escaped)` does so with all that a template shows,
    but for `safe`.
    """
    if isinstance(value, Markup):
        return value
    return Markup(_SPECIAL.sub(r"\\\g<0>", printable(str(value))))
