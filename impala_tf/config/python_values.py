"""Flags that are given as Python values, in place of the words of a command line."""

from __future__ import annotations

import json
import numbers
import os
import typing
from collections.abc import Mapping
from typing import Any

import numpy as np

from impala_tf.config import words
from impala_tf.config.errors import ConfigError
from impala_tf.config.flag_values import Given
from impala_tf.config.limits import problems
from impala_tf.config.own_levels import kwargs_text, level_kwargs


def given(flags: Mapping[str, Any]) -> Given:
    """Returns flags given as Python values, such as {"num_actors": 2}.

    Numbers may be NumPy's, paths `os.PathLike`, repeated flags lists, and `level_kwargs` a
    dictionary. None asks for the default that follows from other flags. TF_CONFIG has no effect
    here.

    Raises:
      ConfigError: an unknown flag, or a value of the wrong type or out of range; one line for each.
    """
    values, lines = {}, []
    for name, value in flags.items():
        values[name] = _plain(name, value)
        if problem := _problem(name, values[name]):
            lines.append(problem)
    if not lines:
        lines = problems(Given(values))
    if lines:
        raise ConfigError(lines)
    return Given(values)


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if name == "level_kwargs":
        return _one_text(value)
    if isinstance(value, list):
        return tuple(value)
    if isinstance(value, numbers.Number) and hasattr(value, "item"):  # NumPy's
        value = value.item()
    kind = words.types().get(name)
    if kind is float and type(value) is int:
        return float(value)
    if kind is int and type(value) is float and value.is_integer():  # 1e6 is a float in Python
        return int(value)
    return value


def _one_text(value: Any) -> Any:
    """Returns --level_kwargs as the one text for equal values; a wrong value unchanged."""
    try:
        if isinstance(value, Mapping):
            value = json.dumps(dict(value), default=_of_numpy)
        return kwargs_text(level_kwargs(value)) if isinstance(value, str) else value
    except (TypeError, ValueError):
        return value


def _of_numpy(value: Any) -> Any:
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    raise TypeError(f"{value!r}: JSON cannot hold it")


def _problem(name: str, value: Any) -> str | None:
    """Returns what is wrong with a value, and what would be right; None if nothing is."""
    if name not in words.types():
        return words.unknown(name)
    if value is None and words.may_be_none(name):
        return None
    wanted = _wanted(words.types()[name], value)
    if wanted and name == "level_kwargs":
        wanted = "a dictionary that JSON can hold, or the JSON text of one"
    return wanted and f"--{name}={value!r}: must be {wanted}"


def _wanted(kind: Any, value: Any) -> str | None:
    """Returns what a value must be; None if the value is right."""
    if kind is bool:
        return None if isinstance(value, bool) else "True or False"
    if typing.get_origin(kind) is tuple:
        is_list = isinstance(value, tuple) and all(isinstance(item, str) for item in value)
        return None if is_list else "a list of strings"
    if kind in (int, float):
        is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
        return words.wrong_value(kind, str(value) if is_number else "")
    if not isinstance(value, str):
        choices = [f'"{choice}"' for choice in typing.get_args(kind) if choice]
        return f"one of {', '.join(choices)}" if choices else "a string"
    return words.wrong_value(kind, value)
