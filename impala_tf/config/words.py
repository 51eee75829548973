"""The words of a command line: which flags they give, which values, and what is wrong with them.

argparse would stop at the first wrong word.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import math
import types
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from impala_tf.config.errors import ConfigError
from impala_tf.config.flag_types import Range
from impala_tf.config.flags import Config
from impala_tf.config.other_names import OTHER_NAMES

_ALIKE = 0.7
_DEFAULTS = ("auto", "None")
_SHORTEST_BEGINNING = 4


class Flag(NamedTuple):
    """What a flag may be."""

    kind: Any
    """bool of a switch, int, float, str, a Literal, or tuple[str, ...] if it may be repeated."""
    may_be_none: bool
    """Whether None is a value, or asks for a default that follows from other flags."""
    is_derived: bool
    """Whether its default follows from other flags."""
    range: Range | None


@functools.cache
def flags() -> dict[str, Flag]:
    """Returns every flag, by its name."""
    return {
        name: _flag(hint)
        for group in typing.get_type_hints(Config).values()
        for name, hint in typing.get_type_hints(group, include_extras=True).items()
    }


def _flag(hint: Any) -> Flag:
    extras: list[Any] = []
    while typing.get_origin(hint) in (Annotated, typing.Union, types.UnionType):
        hint, *others = typing.get_args(hint)
        extras += others
    ranges = [extra for extra in extras if isinstance(extra, Range)]
    return Flag(hint, type(None) in extras, "derived" in extras, ranges[0] if ranges else None)


class Word(NamedTuple):
    """A flag on the command line, or a word that is not a flag."""

    text: str
    """As typed, without the value if that is a word of its own."""
    name: str
    """A flag's name, with _ for each - and without a switch's no_; another word as it is."""
    value: str | None
    """None if there is none."""


def read(arguments: Sequence[str]) -> list[Word]:
    """Returns the words of a command line; a flag and its value are one word."""
    words, remaining = [], list(arguments)
    while remaining:
        text = remaining.pop(0)
        typed, equals, value = text.partition("=")
        name = typed.lstrip("-").replace("-", "_") if typed.startswith("-") else typed
        if typed.startswith("--") and name not in flags() and _is_switch(name.removeprefix("no_")):
            name = name.removeprefix("no_")
        takes_next = typed.startswith("-") and not equals and not _is_switch(name)
        if takes_next and remaining and not remaining[0].startswith("--"):
            words.append(Word(text, name, remaining.pop(0)))
        else:
            words.append(Word(text, name, value if equals else None))
    return words


def values(words: Sequence[Word]) -> dict[str, Any]:
    """Returns {flag: value}.

    A flag that may be repeated collects its values; otherwise, the last one counts. None stands for
    a request for the default, such as --agent_name=auto.

    Raises:
      ConfigError: one line for every word that is not a flag, or has a value of the wrong type.
    """
    found: dict[str, Any] = {}
    problems = []
    for word in words:
        try:
            value = _value(word)
        except ValueError as error:
            problems.append(str(error))
            continue
        if isinstance(value, tuple):
            value = (*found.get(word.name, ()), *value)
        found[word.name] = value
    if problems:
        raise ConfigError(problems)
    return found


def _value(word: Word) -> Any:
    """Returns the value that a word gives; raises ValueError if it is wrong."""
    if not word.text.startswith("--") or word.name not in flags():
        raise ValueError(unknown(word.name, word.text.partition("=")[0]))
    if _is_switch(word.name):
        if word.value is None:
            return word.text.lstrip("-").replace("-", "_") == word.name
        raise ValueError(f"{word.text}: takes no value; give --{word.name} or --no_{word.name}")
    if word.value is None:
        raise ValueError(f"--{word.name}: needs a value, as in --{word.name}=VALUE")
    return of_text(word.name, word.value)


def of_text(name: str, text: str) -> Any:
    """Returns the value that a text gives to a flag which is no switch.

    Raises:
      ValueError: it is not a value of the flag, which the message names.
    """
    flag = flags()[name]
    # A folder may have any name.
    if flag.is_derived and text in _DEFAULTS and name != "logdir":
        return None
    if flag.may_be_none and text == "None":
        return None
    if typing.get_origin(flag.kind) is Literal:
        choices = typing.get_args(flag.kind)
        if text not in choices:
            raise ValueError(f"--{name}={text}: must be one of {', '.join(filter(None, choices))}")
    if flag.kind in (int, float):
        number = _number(text)
        if number is None or (flag.kind is int and number != int(number)):
            what = "a whole number" if flag.kind is int else "a number"
            raise ValueError(f"--{name}={text}: must be {what}")
        return flag.kind(number)
    return (text,) if typing.get_origin(flag.kind) is tuple else text


def _number(text: str) -> int | float | None:
    """Returns the number that a text is, such as 20_000_000, 2e7 or 0.5; None if it is none."""
    with contextlib.suppress(ValueError):
        return int(text)
    with contextlib.suppress(ValueError):
        return float(text) if math.isfinite(float(text)) else None
    return None


def unknown(name: str, typed: str = "") -> str:
    """Returns the message that there is no such flag, with the flag that may be meant."""
    hint = _hint(name.lower())
    if not hint:
        is_flag = not typed or typed.startswith("-")
        meant = "logdir" if Path(typed).is_dir() else "level_name"
        hint = " (see --help_all)" if is_flag else f"; flags begin with --: --{meant}={typed}"
    return f"{typed or f'--{name}'}: no such flag{hint}"


def _is_switch(name: str) -> bool:
    return name in flags() and flags()[name].kind is bool


def _hint(name: str) -> str:
    """Returns the end of a message, with the flag that is meant; '' if nothing is similar."""
    if name in typing.get_args(flags()["mode"].kind):
        return f"; did you mean --mode={name}?"
    if name in OTHER_NAMES:
        return f"; did you mean --{OTHER_NAMES[name]}?"
    long_enough = len(name) >= _SHORTEST_BEGINNING
    near = [flag for flag in flags() if long_enough and flag.startswith(name)]
    if len(near) != 1:
        near = difflib.get_close_matches(name, flags(), 1, _ALIKE)
    return f"; did you mean --{near[0]}?" if near else ""
