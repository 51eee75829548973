"""Turns NamedTuples into JSON values, and back."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from typing import Any


def to_plain(value: Any) -> Any:
    """Returns a value in which every NamedTuple is a dict and every tuple a list."""
    if hasattr(value, "_asdict"):
        return {name: to_plain(part) for name, part in value._asdict().items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(part) for part in value]
    if isinstance(value, Mapping):
        return {name: to_plain(part) for name, part in value.items()}
    return value


def from_plain(kind: Any, value: Any) -> Any:
    """Returns the value of type `kind` from which `to_plain` made `value`.

    Raises:
      TypeError, KeyError, ValueError or AttributeError: the value has another form.
    """
    arguments = typing.get_args(kind)
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        (kind,) = [member for member in arguments if member is not types.NoneType]
        return from_plain(kind, value)
    if origin is tuple:
        return tuple(from_plain(arguments[0], part) for part in value)
    if origin in (dict, Mapping):
        return {name: from_plain(arguments[1], part) for name, part in value.items()}
    if hasattr(kind, "_fields"):
        hints = typing.get_type_hints(kind)
        return kind(**{name: from_plain(hints[name], part) for name, part in value.items()})
    return value
