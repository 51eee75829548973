"""Writes impala_tf/api/arguments.pyi: the flags, as the typed keyword arguments of Python.

.venv/bin/python -m tests.helpers.arguments
"""

from __future__ import annotations

from impala_tf.config.flags import COMMAND, FLAGS, PLAYER, Flag
from tests.helpers.runs import PROJECT

FILE = PROJECT / "impala_tf" / "api" / "arguments.pyi"
_HEAD = '''"""Generated from config/flags.py by: .venv/bin/python -m tests.helpers.arguments"""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict

_Path = str | os.PathLike[str]
_Wrapper = str | Callable[..., Any]
'''
_KINDS = {
    "logdir": "_Path",
    "start_from": "_Path",
    "mirror": "_Path",
    "level_kwargs": "str | Mapping[str, Any]",
    "level_wrappers": "_Wrapper | Sequence[_Wrapper]",
    "info_metrics": "str | Sequence[str]",
}
_OF_TRAIN = ("level_name", "algorithm", "callbacks")  # which have parameters of their own
_OF_EVALUATE = ("logdir", "checkpoint", "trust_level_module", "test_num_episodes", "test_policy")


def text() -> str:
    """Returns the content of the file."""
    flags = [flag for flag in FLAGS.values() if not flag.scope & COMMAND]
    train = [flag for flag in flags if flag.name not in _OF_TRAIN]
    evaluate = [
        flag
        for flag in flags
        if (flag.scope & PLAYER or flag.group == "environment") and flag.name not in _OF_EVALUATE
    ]
    return _HEAD + _class("TrainArguments", train) + _class("EvaluateArguments", evaluate)


def _class(name: str, flags: list[Flag]) -> str:
    lines = ["", "", f"class {name}(TypedDict, total=False):"]
    lines += [f"    {flag.name}: {_kind(flag)}" for flag in flags]
    return "\n".join(lines) + "\n"


def _kind(flag: Flag) -> str:
    if flag.name in _KINDS:
        kind = _KINDS[flag.name]
    elif flag.choices:
        kind = f"Literal[{', '.join(map(repr, flag.choices))}]".replace("'", '"')
    else:
        kind = "Sequence[str]" if flag.is_repeated else flag.kind.__name__
    return f"{kind} | None" if flag.may_be_none else kind


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
