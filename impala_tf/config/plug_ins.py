"""The user's own code, which flags name as module:NAME, and the arguments of own levels."""

from __future__ import annotations

import difflib
import importlib
import json
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from impala_tf.config.errors import ConfigError
from impala_tf.printable import printable

FLAGS = ("agent_name", "algorithm", "callbacks")
"""Flags whose values may have this form; --callbacks is a list of them."""
WRITTEN = "notebook_"
"""The prefix of modules that `impala_tf.train` writes for functions of a notebook."""
FOLDERS_VARIABLE = "IMPALA_TF_MODULES"
"""Environment variable with more folders of the user's modules, separated as in PATH."""
_NOT_OF_USERS = ("<", *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")))
FORM = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_WRAPPER = re.compile(rf",\s*({FORM.pattern})\s*")
_EXAMPLE = """--level_kwargs='{"size": 8}'"""
_EXAMPLE_WRAPPER = """--level_wrappers='my_levels:MyWrapper{"size": 8}'"""


def is_own(name: str | None) -> bool:
    """Tells whether a value names code of the user's own."""
    return name is not None and ":" in name


def names(flags: Mapping[str, Any]) -> list[str]:
    """Returns the module:NAME values of flags, in the order of FLAGS."""
    values = (name.strip() for flag in FLAGS for name in (flags[flag] or "").split(","))
    return [value for value in values if is_own(value)]


def modules(flags: Mapping[str, Any]) -> list[str]:
    """Returns the modules that flags name."""
    return sorted({name.partition(":")[0] for name in names(flags)})


def problems(flags: Mapping[str, Any]) -> list[str]:
    """Returns one line for each flag that does not name code of the user's own as it should.

    Imports nothing.
    """
    lines = [
        f"--callbacks={flags['callbacks']}: '{name}' is not module:Class, such as"
        " my_module:MyCallback"
        for name in split(flags["callbacks"])
        if FORM.fullmatch(name) is None
    ]
    for flag, read in (("level_kwargs", level_kwargs), ("level_wrappers", level_wrappers)):
        try:
            read(flags[flag])
        except ValueError as error:
            lines.append(f"--{flag}={flags[flag]}: {error}")
    return lines


def split(text: str) -> tuple[str, ...]:
    """Returns the parts of a comma separated flag, such as --learner_hosts; '' has none."""
    return tuple(part.strip() for part in text.split(",")) if text.strip() else ()


def load(flag: str, name: str) -> Any:
    """Returns what module:NAME names. The module may lie in the current folder.

    Raises ConfigError: the name is not module:NAME, or the module cannot be imported or lacks it.
    """
    if FORM.fullmatch(name) is None:
        raise ConfigError(f"--{flag}={name}: must be module:NAME")
    module_name, _, attribute = name.partition(":")
    look_in_current_folder()
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        raise ConfigError(f"--{flag}={name}: {cannot_import(module_name, error)}") from error
    try:
        return getattr(module, attribute)
    except AttributeError:
        hint = near(attribute, vars(module))
        raise ConfigError(f"--{flag}={name}: {module_name} has no {attribute}{hint}") from None


def cannot_import(module: str, error: BaseException) -> str:
    """Returns why a module of the user's own cannot be imported, and what to do about it."""
    reason = str(error) if isinstance(error, ImportError) else raised(error)
    if isinstance(error, SystemExit):
        reason += '; put what only a script does under: if __name__ == "__main__":'
    top = module.partition(".")[0]
    if isinstance(error, ModuleNotFoundError) and (error.name == top or module.endswith(".py")):
        file = f"{top}/" if "." in module else f"{top}.py"
        reason += f"; start the command in the folder that holds {file}, or add it to PYTHONPATH"
        if module.endswith(".py"):
            reason = f"write {module.removesuffix('.py')}, without .py"
    return f"cannot import the module '{module}': {reason}"


def near(name: str, others: Iterable[str]) -> str:
    """Returns the end of a message, with the most similar name; '' if nothing is similar."""
    matches = difflib.get_close_matches(name, [other for other in others if other[0] != "_"], 1)
    return f"; did you mean {matches[0]}?" if matches else ""


def raised(error: BaseException) -> str:
    """Describes an error in one line, with the line of the user's code that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    of_user = [frame for frame in frames if not frame.filename.startswith(_NOT_OF_USERS)]
    places = [f" ({Path(at.filename).name}, line {at.lineno})" for at in of_user or frames]
    place = places[-1] if places else ""
    if isinstance(error, SyntaxError):
        place = ""  # its text names the line
    return printable(f"{type(error).__name__}: {' '.join(str(error).split())}{place}")


def look_in_current_folder() -> None:
    """Makes modules in the folders of FOLDERS_VARIABLE, and in the current one, importable.

    They come after all other folders, so that a file in them cannot hide an installed module. Call
    this only once a flag names a module: the current folder may contain anything, such as a folder
    "wandb". It comes last: one of its files may have the name of a module in another folder.
    """
    folders = os.environ.get(FOLDERS_VARIABLE, "").split(os.pathsep)
    for folder in (*filter(None, folders), str(Path.cwd())):
        if folder not in sys.path:
            sys.path.append(folder)


def level_kwargs(text: str) -> dict[str, Any]:
    """Returns the arguments in --level_kwargs; raises ValueError: it is not a JSON object."""
    if not text:
        return {}
    try:
        kwargs = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not JSON ({error}); write {_EXAMPLE}") from None
    if not isinstance(kwargs, dict):
        raise ValueError(f"must be a JSON object, as in {_EXAMPLE}")
    return kwargs


def level_wrappers(text: str) -> list[tuple[str, dict[str, Any]]]:
    """Returns (module:NAME, arguments) of each of --level_wrappers; raises ValueError: not so."""
    found: list[tuple[str, dict[str, Any]]] = []
    rest = text.strip() and f",{text}"
    while rest:
        if (match := _WRAPPER.match(rest)) is None:
            raise ValueError(f"'{rest.lstrip(', ')}' is not module:name, as in {_EXAMPLE_WRAPPER}")
        kwargs: dict[str, Any] = {}
        end = match.end()
        if rest.startswith("{", end):
            try:
                kwargs, end = json.JSONDecoder().raw_decode(rest, end)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"is not JSON ({error}); write {_EXAMPLE_WRAPPER}") from None
        found.append((match[1], kwargs))
        rest = rest[end:].lstrip()
    return found


def kwargs_text(kwargs: Mapping[str, Any]) -> str:
    """Returns arguments as the text of --level_kwargs: one text for equal values, '' for none."""
    return json.dumps(kwargs, sort_keys=True) if kwargs else ""
