"""Which files a run's own modules are: another folder may have others of the same names."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from impala_tf.config import ConfigError, Given, plug_ins, user_commands
from impala_tf.environments import suites

_PACKAGE = "__init__.py"
_INSTALLED = {"site-packages", "dist-packages"}


def names(given: Given) -> set[str]:
    """Returns the user's own modules that playing a run with these flags imports."""
    flags = given.without("callbacks").everything()  # only training calls these
    return {*suites.modules(given.environment), *plug_ins.modules(flags)}


def files(given: Given) -> dict[str, str]:
    """Returns {module: file} of a run's own modules, for config.json.

    Left out are installed ones, those that `impala_tf.train` has written, and those beside this
    package: a launch has copied these, into a folder that the next launch may replace.
    """
    found = {name: plug_ins.file_of(name) for name in sorted(names(given))}
    return {
        name: str(file)
        for name, file in found.items()
        if file is not None
        and not name.startswith(plug_ins.WRITTEN)
        and _INSTALLED.isdisjoint(file.parts)
        and _folder(name, file) != user_commands.PROJECT
    }


def digests(modules: Mapping[str, str]) -> dict[str, str]:
    """Returns {module: SHA-256 of its file}, for config.json.

    Args:
      modules: what `files` returned.
    """
    contents = {name: Path(file).read_bytes() for name, file in modules.items()}
    return {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}


def changes(described: Mapping[str, Any], given: Given) -> list[str]:
    """Returns a line for each file of a run's own modules that has changed since its last start.

    Args:
      described: the content of config.json.
      given: the run's flags.
    """
    before = described.get("module_digests", {})
    here = files(given)
    now = digests({name: file for name, file in here.items() if name in before})
    return [
        f"note: {here[name]} has changed since the run was last started"
        for name, digest in now.items()
        if digest != before[name]
    ]


def problems(described: Mapping[str, Any], where: str, named: Iterable[str]) -> list[str]:
    """Returns one line for each module whose file here is another one than the run's.

    A copy is not another one. Files of the run that this machine does not have are not compared.

    Args:
      described: the content of config.json.
      where: the folder of the run.
      named: the modules that are imported.
    """
    lines = []
    for name, theirs in _recorded(described, named).items():
        here = plug_ins.file_of(name)
        if here is None or _is_copy(here, theirs):
            continue
        lines.append(
            f"--logdir={where}: was trained with {theirs}, but the module {name} that is found here"
            f" is {here}, which differs; start the command in {_folder(name, theirs)}, give another"
            f' --logdir, or, to use the one found here, remove "modules" from {where}/config.json'
        )
    return lines


def look_where_recorded(described: Mapping[str, Any], where: str, named: Iterable[str]) -> None:
    """Makes a run's modules importable that are not found here, before they are imported.

    Args:
      described, where: as `problems` takes them.
      named: the modules, which the user trusts.

    Raises:
      ConfigError: another file would be imported than the run's.
    """
    named = list(named)
    if not _recorded(described, named):
        return
    plug_ins.look_in_current_folder()
    lines = []
    for name in named:
        line = "".join(problems(described, where, [name]))
        if line and name in sys.modules:
            line += "; this process has already imported it, so start another one"
        lines += [line] if line else []
    if lines:
        raise ConfigError(lines)
    for name, theirs in _recorded(described, named).items():
        if plug_ins.file_of(name) is None:
            sys.path.append(str(_folder(name, theirs)))


def _recorded(described: Mapping[str, Any], named: Iterable[str]) -> dict[str, Path]:
    """Returns the files of a run's modules, as far as they are on this machine."""
    recorded = described.get("modules", {})
    found = {name: Path(str(recorded[name])) for name in named if name in recorded}
    return {name: file for name, file in found.items() if _is_here(file)}


def _is_here(file: Path) -> bool:
    try:
        return file.is_file()
    except PermissionError:  # a folder that this user may not enter
        return False


def _folder(name: str, file: Path) -> Path:
    """Returns the folder in which Python finds a module, or the package that it is in."""
    inside = file.parent if file.name == _PACKAGE else file
    return inside.parents[min(name.count("."), len(inside.parents) - 1)]


def _is_copy(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other) or one.read_bytes() == other.read_bytes()
    except OSError:  # what cannot be read is not known to be another one
        return True
