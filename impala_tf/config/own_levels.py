"""The text of --level_kwargs and --level_wrappers, and what may be wrong with it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NoReturn

_WRAPPER = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_EXAMPLE = """--level_kwargs='{"size": 8}'"""


def level_kwargs(text: str) -> dict[str, Any]:
    """Returns what --level_kwargs says; '' says {}.

    Raises:
      ValueError: it is no JSON object; the message says why.
    """
    if not text:
        return {}
    try:
        found = json.loads(text, parse_constant=_refuse)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno} column {error.colno}"
        raise ValueError(f"is no JSON ({error.msg}, {where}); write {_EXAMPLE}") from None
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError(f"must be a JSON object, as in {_EXAMPLE}")
    return found


def kwargs_text(kwargs: Mapping[str, Any]) -> str:
    """Returns the --level_kwargs that say this: one text for equal values, '' for none."""
    return json.dumps(kwargs, sort_keys=True) if kwargs else ""


def wrapper_names(text: str) -> list[str]:
    """Returns each module:name of --level_wrappers."""
    return [part.strip() for part in text.split(",")] if text.strip() else []


def own_level_problems(flags: Mapping[str, Any]) -> list[str]:
    """Returns one line for each of the two flags that cannot be read."""
    found = []
    try:
        level_kwargs(flags["level_kwargs"])
    except ValueError as error:
        found.append(f"--level_kwargs={flags['level_kwargs']}: {error}")
    for name in wrapper_names(flags["level_wrappers"]):
        if _WRAPPER.fullmatch(name) is None:
            found.append(
                f"--level_wrappers={flags['level_wrappers']}: '{name}' is not module:name, such as"
                " my_levels:MyWrapper"
            )
    return found


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON; write {_EXAMPLE}")
