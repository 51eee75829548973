"""Flags that are given as Python values, in place of the words of a command line."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from impala_tf.config import flag_values
from impala_tf.config.errors import ConfigError
from impala_tf.config.flag_values import Given
from impala_tf.config.flags import FLAGS
from impala_tf.config.limits import checked

_FLAG = re.compile(r"--(no_)?(\w+)(=?)")


@contextlib.contextmanager
def errors_name_arguments() -> Iterator[None]:
    """Lets a ConfigError name arguments, num_actors=2, in place of flags. Also a decorator."""
    try:
        yield
    except ConfigError as error:
        error.problems = [of_arguments(line) for line in error.problems]
        error.args = ("\n".join(error.problems),)
        raise


def of_arguments(text: str) -> str:
    """Returns a text about flags, --num_actors=2, as one about arguments, num_actors=2."""
    return _FLAG.sub(_argument, text)


def _argument(flag: re.Match[str]) -> str:
    no, name, equals = flag.groups()
    if name not in FLAGS:
        return flag[0]
    return f"{name}={not no}" if FLAGS[name].kind is bool and not equals else f"{name}{equals}"


def given(flags: Mapping[str, Any]) -> Given:
    """Returns flags given as Python values, such as {"num_actors": 2}; see `of_python`.

    TF_CONFIG has no effect here.

    Raises:
      ConfigError: an unknown flag, or a value of the wrong type or out of range; one line for each.
    """
    values, lines = {}, []
    for name, value in flags.items():
        try:
            if name not in FLAGS:
                raise ValueError(f"{name}: no such argument{flag_values.meant(name)}")
            values[name] = flag_values.of_python(name, value)
        except ValueError as error:
            lines.append(str(error))
    if lines:
        raise ConfigError(lines)
    return checked(Given(values))
