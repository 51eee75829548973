"""Whether the user's own code exists, checked without running it.

The process that starts a run does not load TensorFlow, so it cannot import a torso.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from impala_tf.config import plug_ins
from impala_tf.config.errors import ConfigError

# These may give a module names that its text does not show.
_DYNAMIC = {"__getattr__", "globals", "vars", "locals", "exec", "eval", "setattr"}


def check(flag: str, name: str) -> None:
    """Looks for module:NAME; what cannot be known without importing it is left to the import.

    Args:
      flag: the flag's name, such as agent_name.
      name: the flag's value.

    Raises:
      ConfigError: there is no such module, it is not Python, or it clearly lacks the name.
    """
    module, attribute = plug_ins.parts(flag, name)
    if module in sys.modules:
        return
    plug_ins.look_in_current_folder()
    spec = _spec(module)
    if spec is None:
        raise ConfigError(f"--{flag}={name}: {plug_ins.not_found(module)}")
    if spec.origin is None or not spec.origin.endswith(".py"):
        return
    try:
        tree = ast.parse(Path(spec.origin).read_bytes(), spec.origin)
    except (SyntaxError, ValueError) as error:
        raise ConfigError(
            f"--{flag}={name}: cannot import the module '{module}': {plug_ins.raised(error)}"
        ) from error
    except OSError:
        return
    names = set(_names(tree))
    if attribute not in names and not names & {"*", *_DYNAMIC}:
        hint = plug_ins.near(attribute, names)
        raise ConfigError(f"--{flag}={name}: {module} has no {attribute}{hint}")


def file_of(module: str) -> Path | None:
    """Returns the file that a module is imported from, or was; None if it has none, or is nowhere.

    Runs none of its code.
    """
    if module in sys.modules:
        file = getattr(sys.modules[module], "__file__", None)
    else:
        spec = _spec(module)
        file = spec.origin if spec is not None and spec.has_location else None
    return None if file is None else Path(file).resolve()


def _spec(module: str) -> ModuleSpec | None:
    """Returns a module's spec without importing the packages that contain it."""
    top, *submodules = module.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    path = top
    for name in submodules:
        if spec is None:
            return None
        path = f"{path}.{name}"
        spec = PathFinder.find_spec(path, spec.submodule_search_locations or [])
    return spec


def _names(tree: ast.AST) -> Iterator[str]:
    """Yields every name that a module binds, at any depth, and what it uses of _DYNAMIC."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            yield node.name
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).partition(".")[0]
        elif isinstance(node, ast.Name) and (
            isinstance(node.ctx, ast.Store) or node.id in _DYNAMIC
        ):
            yield node.id
