"""--config=FILE: flags in a YAML file. Those on the command line win.

A file is turned into the words of a command line, so both take the same values and give the same
hints.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_origin

from impala_tf.config import words
from impala_tf.config.errors import ConfigError

_SWITCHES = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_HEAD = (
    "# The flags of this run. To resume it: --config=THIS_FILE --logdir=FOLDER_OF_THE_RUN."
    " To repeat it: another --logdir\n"
)


def expanded(arguments: Sequence[str]) -> list[str]:
    """Returns a command line with the flags of its --config in front, and without --config.

    Raises:
      ConfigError: the file cannot be read, or has wrong flags; one line for each of those.
    """
    file, others = _split(arguments)
    if file is None:
        return list(arguments)
    flags = [part for _, parts in _flags_of(file) for part in parts]
    return [*flags, *(_text(word) for word in others)]


def located(problems: Sequence[str], arguments: Sequence[str]) -> list[str]:
    """Returns problems of flags; for a flag from a file, with the file's name and line in front.

    Args:
      problems: one line each; a line begins with the flag.
      arguments: the command line with these problems.
    """
    try:
        file, others = _split(arguments)
        flags = [] if file is None else _flags_of(file)
    except ConfigError:  # the problem is the file itself
        return list(problems)
    places = {word.name: place for place, parts in flags for word in words.read(parts)}
    for word in others:
        places.pop(word.name, None)
    return [f"{place}: {line}" if (place := places.get(_flag(line))) else line for line in problems]


def _flag(problem: str) -> str:
    """Returns the name of the flag that a problem begins with; '' if it begins with none."""
    match = re.match(r"--\w+", problem)
    return words.read([match[0]])[0].name if match else ""


def _split(arguments: Sequence[str]) -> tuple[str | None, list[words.Word]]:
    """Returns the file that a command line names, and its other words."""
    read = words.read(arguments)
    files = [word.value for word in read if word.name == "config"]
    if len(files) > 1 or "" in files or (files and files[0] is None):
        raise ConfigError("--config: name one file, as in --config=run.yaml")
    return files[0] if files else None, [word for word in read if word.name != "config"]


def text(flags: Mapping[str, Any]) -> str:
    """Returns the content of a file with these flags."""
    # Every JSON value is a YAML value.
    lines = [f"{name}: {json.dumps(value)}\n" for name, value in flags.items()]
    return _HEAD + ("".join(lines) or "{}\n")


def _text(word: words.Word) -> str:
    if word.value is None or "=" in word.text:
        return word.text
    return f"{word.text}={word.value}"


def _flags_of(file: str) -> list[tuple[str, list[str]]]:
    """Returns each flag of a file: its place, such as 'run.yaml, line 3', and its words."""
    import yaml  # few runs need it

    try:
        document = yaml.compose(Path(file).read_text(encoding="utf-8"), yaml.SafeLoader)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "is not a text file"
        raise ConfigError(f"--config={file}: cannot read it: {reason}") from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(f"{file}, line {line}: is not YAML: {error.problem}") from None
    except (yaml.YAMLError, RecursionError):
        raise ConfigError(f"--config={file}: is not YAML") from None
    if document is None:
        return []
    if not isinstance(document, yaml.MappingNode):
        raise ConfigError(f"{file}, line 1: must have lines such as 'learning_rate: 0.001'")
    flags, problems, lines = [], [], dict[str, int]()
    for key, value in document.value:
        line = key.start_mark.line + 1
        place, name = f"{file}, line {line}", str(key.value).replace("-", "_")
        if (first := lines.setdefault(name, line)) != line:
            problems.append(f"{place}: {key.value}: line {first} gives it, too; leave one out")
            continue
        try:
            parts = _as_words(str(key.value), value)
        except ValueError as error:
            problems.append(f"{place}: {key.value}: {error}")
            continue
        problems += [f"{place}: {problem}" for problem in words.problems(parts)]
        flags.append((place, parts))
    if problems:
        raise ConfigError(problems)
    return flags


def _as_words(name: str, node: Any) -> list[str]:
    """Returns a file's flag as words; raises ValueError if its value does not fit."""
    import yaml

    if name == "config":
        raise ValueError("a file cannot name another one")
    flag = name.replace("-", "_")
    kind = words.types().get(flag)
    is_null = node.tag == "tag:yaml.org,2002:null"
    if is_null and (kind is bool or (kind is not None and not words.may_be_none(flag))):
        raise ValueError("has no value; give one, or leave the line out")
    if kind is bool:
        return [f"--{'' if _is_on(node) else 'no_'}{flag}"]
    switch = flag.removeprefix("no_")
    if kind is None and words.types().get(switch) is bool:
        raise ValueError(f"no such flag in a file; write {switch}: false, or true")
    if isinstance(node, yaml.ScalarNode):
        return [f"--{name}={'None' if is_null else node.value}"]
    if get_origin(kind) is tuple:
        if not isinstance(node, yaml.SequenceNode):
            raise ValueError("must be one value, or a list of values")
    elif get_origin(kind) is Literal or (
        kind not in (None, str) and not isinstance(node, yaml.SequenceNode)
    ):
        raise ValueError("must be one value")
    try:
        value = yaml.SafeLoader("").construct_object(node, deep=True)
    except yaml.YAMLError as error:
        raise ValueError(f"cannot be read: {getattr(error, 'problem', None) or error}") from None
    if isinstance(value, dict):
        return [f"--{name}={json.dumps(value, sort_keys=True, default=str)}"]
    if kind in (None, str, bool, int, float):
        return [f"--{name}={','.join(map(str, value))}"]
    return [f"--{name}={item}" for item in value]


def _is_on(node: Any) -> bool:
    """Returns the value of a switch; raises ValueError if it is not one."""
    is_on = _SWITCHES.get(node.value.lower()) if isinstance(node.value, str) else None
    if is_on is None:
        given = f"is {node.value}, but " if isinstance(node.value, str) else ""
        raise ValueError(f"{given}must be true or false")
    return is_on
