"""The texts of --level_kwargs and --level_wrappers, and what may be wrong with them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from impala_tf.config.plug_ins import FORM

_EXAMPLE = """--level_kwargs='{"size": 8}'"""
_EXAMPLE_WRAPPER = """--level_wrappers='my_levels:MyWrapper{"size": 8}'"""
_NAME = re.compile(rf",\s*({FORM.pattern})\s*")


def level_kwargs(text: str) -> dict[str, Any]:
    """Returns the arguments in --level_kwargs; {} for ''.

    Raises:
      ValueError: it is not a JSON object; the message says why.
    """
    if not text:
        return {}
    try:
        kwargs = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not JSON ({error}); write {_EXAMPLE}") from None
    if not isinstance(kwargs, dict):
        raise ValueError(f"must be a JSON object, as in {_EXAMPLE}")
    return kwargs


def level_wrappers(text: str) -> list[tuple[str, dict[str, Any]]]:
    """Returns (module:NAME, arguments) of each wrapper in --level_wrappers; [] for ''.

    Raises:
      ValueError: it has another form; the message says which.
    """
    found: list[tuple[str, dict[str, Any]]] = []
    rest = text.strip() and f",{text}"
    while rest:
        if (match := _NAME.match(rest)) is None:
            raise ValueError(f"'{rest.lstrip(', ')}' is not module:name, as in {_EXAMPLE_WRAPPER}")
        kwargs: dict[str, Any] = {}
        end = match.end()
        if rest.startswith("{", end):
            try:
                kwargs, end = json.JSONDecoder().raw_decode(rest, end)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"is not JSON ({error}); write {_EXAMPLE_WRAPPER}") from None
        found.append((match[1], kwargs))
        rest = rest[end:].lstrip()
    return found


def kwargs_text(kwargs: Mapping[str, Any]) -> str:
    """Returns arguments as the text of --level_kwargs: one text for equal values, '' for none."""
    return json.dumps(kwargs, sort_keys=True) if kwargs else ""


def own_level_problems(flags: Mapping[str, Any]) -> list[str]:
    """Returns one line for each of both flags that cannot be read. Imports nothing."""
    problems = []
    for flag, read in (("level_kwargs", level_kwargs), ("level_wrappers", level_wrappers)):
        try:
            read(flags[flag])
        except ValueError as error:
            problems.append(f"--{flag}={flags[flag]}: {error}")
    return problems
