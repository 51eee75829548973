"""Flags that are given as Python values, in place of the words of a command line."""

from __future__ import annotations

import json
import numbers
import os
import typing
from collections.abc import Mapping
from typing import Any

from impala_tf.config import words
from impala_tf.config.errors import ConfigError
from impala_tf.config.flag_values import Given
from impala_tf.config.limits import checked


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
        try:
            values[name] = _value(name, value)
        except ValueError as error:
            lines.append(str(error))
    if lines:
        raise ConfigError(lines)
    return checked(Given(values))


def _value(name: str, value: Any) -> Any:
    """Returns the flag's value; raises ValueError, which names the flag, if it does not fit."""
    flag = words.flags().get(name)
    if flag is None:
        raise ValueError(words.unknown(name))
    is_repeated = typing.get_origin(flag.kind) is tuple
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if hasattr(value, "item"):  # a number of NumPy's
        value = value.item()
    if isinstance(value, float) and value.is_integer() and flag.kind is int:  # such as 1e6
        value = int(value)
    if name == "level_kwargs" and isinstance(value, Mapping):
        try:
            return json.dumps(dict(value), default=_of_numpy)
        except (TypeError, ValueError) as error:
            raise ValueError(f"--{name}={value!r}: {error}") from None
    if (value is None and flag.may_be_none) or (flag.kind is bool and isinstance(value, bool)):
        return value
    if is_repeated and isinstance(value, (list, tuple)):
        return tuple(map(str, value))
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    wanted = {bool: "True or False", int: "a whole number", float: "a number"}
    if is_repeated or not (is_number if flag.kind in wanted else isinstance(value, str)):
        what = "a list of strings" if is_repeated else wanted.get(flag.kind, "a string")
        raise ValueError(f"--{name}={value!r}: must be {what}")
    if flag.kind is bool:
        raise ValueError(f"--{name}={value!r}: must be True or False")
    return words.of_text(name, str(value))


def _of_numpy(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{value!r}: JSON cannot hold it")
