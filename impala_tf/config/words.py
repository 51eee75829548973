"""The words of a command line: which flags they give, which values, and what is wrong with them.

No library is used, because every process of a run reads its command line: such libraries take
10 MB, and do not say which flags were given.
"""

from __future__ import annotations

import difflib
import functools
import re
import typing
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Literal, NamedTuple

from impala_tf.config.flags import Config
from impala_tf.config.other_names import OTHER_NAMES

_ALIKE = 0.7
_DEFAULTS = ("auto", "None")
_SHORTEST_BEGINNING = 4


class Word(NamedTuple):
    """A flag on the command line, or a word that is not a flag."""

    text: str
    """As typed, without the value if that is a word of its own."""
    name: str
    """A flag's name, with _ for each - and without a switch's no_; another word as it is."""
    value: str | None
    """None if there is none."""


@functools.cache
def types() -> dict[str, Any]:
    """Returns {flag: its type}, without `| None`."""
    hints: dict[str, Any] = {}
    for group in typing.get_type_hints(Config).values():
        for name, hint in typing.get_type_hints(group).items():
            choices = typing.get_args(hint)
            is_optional = type(None) in choices
            hints[name] = choices[0] if is_optional else hint
    return hints


def read(arguments: Sequence[str]) -> list[Word]:
    """Returns the words of a command line; a flag and its value are one word."""
    words, remaining = [], list(arguments)
    while remaining:
        text = remaining.pop(0)
        typed, equals, value = text.partition("=")
        name = typed.lstrip("-").replace("-", "_") if typed.startswith("-") else typed
        if typed.startswith("--") and name not in types() and _is_switch(name.removeprefix("no_")):
            name = name.removeprefix("no_")
        takes_next = typed.startswith("-") and not equals and not _is_switch(name)
        if takes_next and remaining and not remaining[0].startswith("--"):
            words.append(Word(text, name, remaining.pop(0)))
        else:
            words.append(Word(text, name, value if equals else None))
    return words


def given(arguments: Sequence[str]) -> dict[str, Any]:
    """Returns {flag: value} of a command line that has no `problems`.

    A flag that may be repeated collects its values; otherwise, the last one counts. None stands for
    a request for the default, such as --agent_name=auto.
    """
    flags: dict[str, Any] = {}
    for word in read(arguments):
        kind = types()[word.name]
        if _asks_for_default(word):
            flags[word.name] = None
        elif typing.get_origin(kind) is tuple:
            flags[word.name] = (*flags.get(word.name, ()), word.value)
        elif kind is bool:
            flags[word.name] = word.text.lstrip("-").replace("-", "_") != f"no_{word.name}"
        elif word.value == "None" and word.name in _optional():
            flags[word.name] = None
        else:
            flags[word.name] = _READ.get(kind, str)(word.value)
    return flags


def _asks_for_default(word: Word) -> bool:
    if word.name == "logdir":  # a folder may have any name
        return False
    return word.value in _DEFAULTS and word.name in _derived()


@functools.cache
def _optional() -> frozenset[str]:
    """Returns the names of the flags whose value may be None."""
    return frozenset(
        name
        for group in typing.get_type_hints(Config).values()
        for name, hint in typing.get_type_hints(group).items()
        if type(None) in typing.get_args(hint)
    )


@functools.cache
def _derived() -> frozenset[str]:
    """Returns the names of the flags whose default follows from others (see `derived.Derived`)."""
    return frozenset(
        name
        for group in typing.get_type_hints(Config).values()
        for name, hint in typing.get_type_hints(group, include_extras=True).items()
        if typing.get_origin(hint) is typing.Annotated
    )


def problems(arguments: Sequence[str]) -> list[str]:
    """Returns one line for every word that is not a flag, or has a value of the wrong type."""
    return [line for word in read(arguments) if (line := _problem(word))]


def _problem(word: Word) -> str | None:
    """Returns what is wrong with a word, and what would be right; None if nothing is."""
    if not word.text.startswith("--") or word.name not in types():
        return unknown(word.name, word.text.partition("=")[0])
    if _is_switch(word.name):
        if word.value is None:
            return None
        return f"{word.text}: takes no value; give --{word.name} or --no_{word.name}"
    if word.value is None:
        return f"--{word.name}: needs a value, as in --{word.name}=VALUE"
    if _asks_for_default(word) or (word.value == "None" and word.name in _optional()):
        return None
    wanted = wrong_value(types()[word.name], word.value)
    return wanted and f"--{word.name}={word.value}: must be {wanted}"


def unknown(name: str, typed: str = "") -> str:
    """Returns the message that there is no such flag, with the flag that may be meant."""
    hint = _hint(name)
    if not hint:
        is_flag = not typed or typed.startswith("-")
        hint = " (see --help_all)" if is_flag else f"; flags begin with --: --level_name={typed}"
    return f"{typed or f'--{name}'}: no such flag{hint}"


def may_be_none(name: str) -> bool:
    """Tells whether None is a value of a flag, or asks for its default."""
    return name in _optional() or name in _derived()


def wrong_value(kind: Any, text: str) -> str | None:
    """Returns what a value of a type must be; None if the text is one."""
    if typing.get_origin(kind) is Literal:
        choices = typing.get_args(kind)
        named = [choice for choice in choices if choice]
        return None if text in choices else f"one of {', '.join(named)}"
    is_repeated = typing.get_origin(kind) is tuple  # limits.py says what they must be
    if kind is str or is_repeated:
        return None
    number = _number(text)
    if number is None:
        return "a number" if kind is float else "a whole number"
    if kind is float or _is_whole(text):
        return None
    return f"a whole number{f', such as {int(number)}' if number.is_integer() else ''}"


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def whole_number(text: str) -> int:
    """Returns the number that a text is, which may be 20_000_000, 2e7 or 1.5e6.

    Raises:
      ValueError: it is not a whole number, or is not written as one, such as 2.0.
    """
    number = Decimal(text) if _POWER_OF_TEN.fullmatch(text) else None
    if number is None or number != number.to_integral_value():
        return int(text)
    return int(number)


_POWER_OF_TEN = re.compile(r"[+-]?\d[\d_]*(\.\d+)?e\+?\d{1,2}", re.ASCII | re.IGNORECASE)
_READ: dict[Any, Callable[..., Any]] = {int: whole_number, float: float}


def _is_whole(text: str) -> bool:
    try:
        whole_number(text)
    except ValueError:
        return False
    return True


def _is_switch(name: str) -> bool:
    return types().get(name) is bool


def _hint(name: str) -> str:
    """Returns the end of a message, with the flag that is meant; '' if nothing is similar."""
    name = name.lower()
    if name in typing.get_args(types()["mode"]):
        return f"; did you mean --mode={name}?"
    other = OTHER_NAMES.get(name)
    if other is not None:
        return f"; {other}" if " " in other else f"; did you mean {other}?"
    long_enough = len(name) >= _SHORTEST_BEGINNING
    near = [flag for flag in types() if long_enough and flag.startswith(name)]
    if len(near) != 1:
        near = difflib.get_close_matches(name, types(), 1, _ALIKE)
    return f"; did you mean --{near[0]}?" if near else ""
