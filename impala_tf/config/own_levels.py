"""The text of --level_kwargs, and what may be wrong with it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_EXAMPLE = """--level_kwargs='{"size": 8}'"""


def level_kwargs(text: str) -> dict[str, Any]:
    """Returns the arguments in --level_kwargs; {} for ''.

    Raises:
      ValueError: it is not a JSON object; the message says why.
    """
    if not text:
        return {}
    try:
        kwargs = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON ({error}); write {_EXAMPLE}") from None
    if not isinstance(kwargs, dict):
        raise ValueError(f"must be a JSON object, as in {_EXAMPLE}")
    return kwargs


def kwargs_text(kwargs: Mapping[str, Any]) -> str:
    """Returns arguments as the text of --level_kwargs: one text for equal values, '' for none."""
    return json.dumps(kwargs, sort_keys=True) if kwargs else ""


def own_level_problems(flags: Mapping[str, Any]) -> list[str]:
    """Returns one line if --level_kwargs cannot be read."""
    try:
        level_kwargs(flags["level_kwargs"])
    except ValueError as error:
        return [f"--level_kwargs={flags['level_kwargs']}: {error}"]
    return []
