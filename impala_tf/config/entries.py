"""What an entry of the flags' table says, and how it is read; see `flags`."""

from __future__ import annotations

import ast
import dataclasses
import enum
import functools
import inspect
import itertools
import operator
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

Extra = TypeVar("Extra")


class Range(NamedTuple):
    """The numbers that a flag may have."""

    wanted: str
    """In words, after "must be"."""
    fits: Callable[[float], bool]


class Scope(enum.Flag):
    """Where a flag matters."""

    RESUMED = enum.auto()
    """May change when a run resumes. Every other flag changes how the run learns, or from what."""
    WIRE = enum.auto()
    """Must be the same for actors and their learner, which compare a digest."""
    GRADIENTS = enum.auto()
    """As WIRE, if actors send gradients."""
    LEARNERS = enum.auto()
    """Must be the same for all learners of a run."""
    HERE = enum.auto()
    """Of this process and these machines: repeating a run elsewhere does not need it."""
    PLAYER = enum.auto()
    """Who plays with a trained agent decides it, not the run that trained it."""
    USER = enum.auto()
    """Only the user may decide it, not somebody's file (see `consent`)."""
    LAUNCH = enum.auto()
    """Of what starts processes, which do not get it."""
    COMMAND = enum.auto()
    """Only of the command line: the Python interface does not take it."""


class Not(NamedTuple):
    """Takes a scope of the group from a flag."""

    scope: Scope


class Short:
    """The commands whose short help shows the flag."""

    def __init__(self, *commands: str) -> None:
        self.commands = commands


class Of:
    """The algorithms that use the flag; without it, all do. A group's OF is that of its flags."""

    def __init__(self, *algorithms: str) -> None:
        self.algorithms = algorithms


RESUMED, WIRE, GRADIENTS, LEARNERS, HERE, PLAYER, USER, LAUNCH, COMMAND = Scope
POSITIVE = Range("greater than 0", lambda value: value > 0)
NOT_NEGATIVE = Range("0 or more", lambda value: value >= 0)
SHARE = Range("between 0 and 1", lambda value: 0 <= value <= 1)
DERIVED = "derived"
"""The default follows from other flags, the level or the machine; None asks for it."""
NOT_GIVEN: Any = None
"""The value of such a flag until `defaults.resolve` finds its default."""


class Flag(NamedTuple):
    """An entry, read from its field."""

    name: str
    group: str
    """A field of `Config`."""
    kind: Any
    """bool of a switch, int, float, str, a Literal, or tuple[str, ...] if it may be repeated."""
    default: Any
    """None if it depends on other flags, or stands for "none"."""
    may_be_none: bool
    is_derived: bool
    range: Range | None
    scope: Scope
    short: tuple[str, ...]
    """The commands whose short help shows it."""
    algorithms: tuple[str, ...]
    """Those that use it; (): all."""

    @property
    def choices(self) -> tuple[str, ...]:
        """The values that it may have; () if these are not listed."""
        return typing.get_args(self.kind) if typing.get_origin(self.kind) is Literal else ()

    @property
    def is_repeated(self) -> bool:
        """Whether it may be given several times, for several values."""
        return typing.get_origin(self.kind) is tuple


def read_entries(group: str, cls: Any) -> Iterator[Flag]:
    """Yields the entries of a group, in the order of its fields."""
    hints = typing.get_type_hints(cls, include_extras=True)
    for field in dataclasses.fields(cls):
        kind, extras = hints[field.name], [Of(*getattr(cls, "OF", ())), getattr(cls, "SCOPE", None)]
        while typing.get_origin(kind) in (Annotated, typing.Union, types.UnionType):
            kind, *others = typing.get_args(kind)
            extras += others
        scope = functools.reduce(operator.or_, _each(extras, Scope), Scope(0))
        for taken in _each(extras, Not):
            scope &= ~taken.scope
        yield Flag(
            field.name,
            group,
            kind,
            field.default,
            may_be_none=DERIVED in extras or type(None) in extras,
            is_derived=DERIVED in extras,
            range=next(iter(_each(extras, Range)), None),
            scope=scope,
            short=tuple(command for short in _each(extras, Short) for command in short.commands),
            algorithms=_each(extras, Of)[-1].algorithms,
        )


def _each(extras: Iterable[Any], kind: type[Extra]) -> list[Extra]:
    return [extra for extra in extras if isinstance(extra, kind)]


def read_texts(cls: type) -> dict[str, str]:
    """Returns {field: the string below it}."""
    (node,) = ast.parse(inspect.getsource(cls)).body
    assert isinstance(node, ast.ClassDef)
    return {
        ast.unparse(field.target): " ".join(ast.literal_eval(below.value).split())
        for field, below in itertools.pairwise(node.body)
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr)
    }
