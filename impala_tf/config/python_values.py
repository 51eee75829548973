"""Flags that are given as Python values, in place of the words of a command line."""

from __future__ import annotations

import contextlib
import json
import re
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from impala_tf.config import words
from impala_tf.config.errors import ConfigError
from impala_tf.config.flag_values import Given
from impala_tf.config.limits import checked

_FLAG = re.compile(r"--(no_)?(\w+)(=?)")


@contextlib.contextmanager
def errors_name_arguments() -> Iterator[None]:
    """Lets a ConfigError name arguments, num_actors=2, in place of flags. Also a decorator."""
    try:
        yield
    except ConfigError as error:
        error.problems = [_FLAG.sub(_argument, line) for line in error.problems]
        error.args = ("\n".join(error.problems),)
        raise


def _argument(flag: re.Match[str]) -> str:
    no, name, equals = flag.groups()
    if name not in words.flags():
        return flag[0]
    if words.flags()[name].kind is bool and not equals:
        return f"{name}={not no}"
    return f"{name}{equals}"


def given(flags: Mapping[str, Any]) -> Given:
    """Returns flags given as Python values, such as {"num_actors": 2}.

    Numbers may be NumPy's or texts, paths `os.PathLike`, flags of several values lists, and
    `level_kwargs` a dictionary. None asks for the default that follows from other flags. TF_CONFIG
    has no effect here.

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
        problem = words.unknown(name).removeprefix("--")
        raise ValueError(problem.replace("no such flag", "no such argument"))
    if hasattr(value, "item"):  # a number of NumPy's
        value = value.item()
    if (value is None and flag.may_be_none) or (flag.kind is bool and isinstance(value, bool)):
        return value
    if flag.kind is bool:
        raise ValueError(f"--{name}={value!r}: must be True or False")
    if isinstance(value, (list, tuple)):
        texts = tuple(map(str, value))
        return texts if typing.get_origin(flag.kind) is tuple else ",".join(texts)
    if isinstance(value, Mapping):
        try:
            return json.dumps(dict(value), default=lambda array: array.tolist())
        except (AttributeError, TypeError, ValueError) as error:
            raise ValueError(f"--{name}={value!r}: {error}") from None
    return words.of_text(name, str(value))
