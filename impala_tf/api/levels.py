"""Levels made by a function or class of the user: under which names processes find them."""

from __future__ import annotations

import ast
import functools
import importlib.machinery
import os
import re
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from impala_tf.config import ConfigError, plug_ins
from impala_tf.logdir import Logdir, replace_file

CHILD_VARIABLE = "IMPALA_TF_IS_CHILD"
"""Environment variable that marks the processes that `train` starts."""
_MAIN = "__main__"
_OF_CLASSES = ("__module__", "__doc__", "__firstlineno__", "__static_attributes__")
"""What classes have besides their definition."""
_MODULE = '''"""Written by impala_tf.train for the function {name} of a notebook or script.

Runs that function's code, as importing any module does.
"""

import base64

import cloudpickle

{name} = cloudpickle.loads(base64.b64decode("""
{data}
"""))
'''


class Level(NamedTuple):
    """A level, by its name on the command line."""

    name: str
    folder: Path | None = None
    """The folder of its module; None if the processes of a run find it anyway."""
    written: tuple[str, str] | None = None
    """File name and text of a module to write into the logdir first, if necessary."""
    identity: Any = None
    """For such a module: tells two functions with one name apart, as far as possible."""

    def environment(self, logdir: Path) -> dict[str, str]:
        """Returns the variables with which the processes of a run find the module."""
        folders = [
            str(folder) for folder in (self.folder, self.written and logdir.absolute()) if folder
        ]
        before = os.environ.get(plug_ins.FOLDERS_VARIABLE)
        folders += [before] if before else []
        of_level = {plug_ins.FOLDERS_VARIABLE: os.pathsep.join(folders)} if folders else {}
        return {**of_level, CHILD_VARIABLE: "1"}


def level_of(level: str | Callable[..., Any]) -> Level:
    """Returns the level for a name, or for a callable that makes a Gymnasium environment.

    A callable at the top level of a module is imported from there; if the module is the running
    script, the processes import its file. Other callables (in a notebook, lambdas, inner functions,
    those under a script's `if __name__ == "__main__":`) are written to a file.

    Raises:
      ConfigError: processes could not find the callable.
    """
    if isinstance(level, str):
        return Level(level)
    if not callable(level):
        raise ConfigError(
            f"level={level!r}: must be a level's name, or a function or class that makes an"
            " environment"
        )
    module = sys.modules.get(getattr(level, "__module__", "") or "")
    name = getattr(level, "__qualname__", "")
    if module is None or getattr(module, name, None) is not level:
        return _written(level, _folder_beside(level))
    if module.__name__ != _MAIN:
        return Level(f"{module.__name__}:{name}", _folder(module))
    spec, file = getattr(module, "__spec__", None), getattr(module, "__file__", None)
    if file is None or not Path(file).is_file():  # a notebook, python -c, or standard input
        return _written(level)
    path = Path(file).resolve()
    folder = _folder(module)
    if _is_guarded(path, name):
        return _written(level, folder)
    if spec is not None:  # python -m package.module
        return Level(f"{spec.name}:{name}", folder)
    return _of_script(path, name)


def _of_script(path: Path, name: str) -> Level:
    if path.suffix != ".py" or not path.stem.isidentifier():
        as_module = re.sub(r"\W", "_", path.stem)
        as_module = as_module if as_module.isidentifier() else f"level_{as_module}"
        problem = f"its name is not that of a module; rename it, such as to {as_module}.py"
    elif other := _other_module(path):
        problem = f"another module has its name ({other}); rename the file"
    else:
        sys.modules.setdefault(path.stem, sys.modules[_MAIN])  # so that it does not run again here
        return Level(f"{path.stem}:{name}", path.parent)
    raise ConfigError(
        f"{path.name}: the processes of a run import this file for {name}, but {problem}"
    )


def _other_module(path: Path) -> str | None:
    """Returns the path of another module that would be imported instead of a script."""
    if path.stem in sys.builtin_module_names:
        return "built-in"
    elsewhere = [folder for folder in sys.path if Path(folder or ".").resolve() != path.parent]
    spec = importlib.machinery.PathFinder.find_spec(path.stem, elsewhere)
    return spec.origin if spec else None  # no origin: a folder without __init__.py, which yields


def _is_guarded(path: Path, name: str) -> bool:
    """Tells whether a script's last definition of a name is under `if __name__ == "__main__":`.

    Processes that import the script do not find that definition, or find another one.
    """
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):  # it was changed while it runs
        return False
    definitions = [statement for statement in tree.body if _defines(statement, name)]
    return bool(definitions) and _is_guard(definitions[-1])


def _is_guard(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test)


def _defines(node: ast.AST, name: str) -> bool:
    """Tells whether a part of a module defines or assigns a name."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return node.name == name
    if isinstance(node, ast.Name):
        return node.id == name and isinstance(node.ctx, ast.Store)
    return any(_defines(child, name) for child in ast.iter_child_nodes(node))


def _folder(module: types.ModuleType) -> Path | None:
    """Returns the folder that a module is imported from; None if it is installed."""
    top = sys.modules.get(module.__name__.partition(".")[0], module)
    if module.__name__ == _MAIN and module.__spec__ is not None:
        top = sys.modules.get(module.__spec__.name.partition(".")[0], module)
    file = getattr(top, "__file__", None)
    place = _portion(top, module) if file is None else Path(file).resolve().parent
    if place is None:
        return None
    folder = place.parent if hasattr(top, "__path__") else place
    return None if "site-packages" in folder.parts else folder


def _folder_beside(level: Callable[..., Any]) -> Path | None:
    """Returns the folder of modules that a written callable imports by name; None: no own folder.

    It is the folder of the callable's own module or, for one of a library, that of the script.
    """
    while isinstance(level, functools.partial):
        level = level.func
    names = (getattr(level, "__module__", None) or _MAIN, _MAIN)
    modules = (sys.modules[name] for name in names if name in sys.modules)
    return next(filter(None, map(_folder, modules)), None)


def _portion(package: types.ModuleType, module: types.ModuleType) -> Path | None:
    """Returns the folder of a package without __init__.py: of several, the one with the module."""
    file = Path(getattr(module, "__file__", None) or "").resolve()
    folders = [Path(folder).resolve() for folder in getattr(package, "__path__", ())]
    return next((folder for folder in folders if file.is_relative_to(folder)), None)


def _written(level: Callable[..., Any], folder: Path | None = None) -> Level:
    import base64

    # Only used to write; nothing in this package reads the result. Gymnasium depends on it.
    import cloudpickle

    plain = re.sub(r"\W+", "_", getattr(level, "__name__", "")).strip("_")
    name = plain if plain.isidentifier() and plain != "lambda" else "make_level"
    try:
        data = base64.encodebytes(cloudpickle.dumps(level)).decode().strip()
    except Exception as error:  # whatever the user's objects raise
        raise ConfigError(
            f"{name}: cannot be written to a file for the processes of a run ({error}); define it"
            " in a module"
        ) from error
    module = types.ModuleType(plug_ins.WRITTEN + name)
    setattr(module, name, level)
    sys.modules[module.__name__] = module  # so that this process needs no file
    text = _MODULE.format(name=name, data=data)
    return Level(
        f"{module.__name__}:{name}", folder, (f"{module.__name__}.py", text), identity(level)
    )


def identity(level: Any, within: tuple[Any, ...] = ()) -> Any:
    """Returns a value that is equal for two equal definitions of a callable, in one process.

    The text of its module would not work: it contains globals, which may have changed since.

    Args:
      level: the function or class, or a part of it.
      within: the objects that contain it, outermost first.
    """
    if any(level is outer for outer in within):  # a recursive function
        return "recursive"
    of = functools.partial(identity, within=(*within, level))
    match level:
        case str() | bytes() | int() | float() | None:
            return level
        case tuple() | list():
            return [of(part) for part in level]
        case dict():
            return [(of(key), of(value)) for key, value in level.items()]
        case functools.partial():
            return [of(part) for part in (level.func, level.args, level.keywords)]
        case types.CodeType():
            return [level.co_code, level.co_names, of(level.co_consts)]
        case types.FunctionType():
            cells = [of(_content(cell)) for cell in level.__closure__ or ()]
            return [of(level.__code__), of(level.__defaults__), cells]
        case type() if _is_imported(level):
            return f"{level.__module__}.{level.__qualname__}"
        case type():
            members = {key: value for key, value in vars(level).items() if key not in _OF_CLASSES}
            return [of(level.__bases__), of(members)]
        case staticmethod() | classmethod():
            return of(level.__func__)
        case property():
            return [of(part) for part in (level.fget, level.fset, level.fdel)]
    return type(level).__name__  # the only part that stays the same


def _is_imported(level: type) -> bool:
    """Returns whether a class is found by its name in a module other than the running script."""
    module = sys.modules.get(level.__module__)
    is_found = getattr(module, level.__qualname__, None) is level
    return is_found and level.__module__ != _MAIN


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None


_trained_here: dict[Path, Any] = {}  # {module that `write` made: identity of its function}


def write(level: Level, logdir: Path) -> None:
    """Writes a level's module into the logdir, if necessary, readable only by this user.

    Raises:
      ConfigError: this process has trained another function with that name there.
    """
    if level.written is None:
        return
    name, text = level.written
    path = (logdir / name).resolve()
    is_trained = any(Logdir(logdir).checkpoints.glob("ckpt-*"))
    if is_trained and _trained_here.get(path, level.identity) != level.identity:
        raise ConfigError(
            f"--logdir={logdir}: holds a run of another level that is called"
            f" {level.name.partition(':')[2]}, too; give another logdir, or fresh=True to move that"
            " run aside"
        )
    _trained_here[path] = level.identity
    replace_file(logdir / name, text.encode())
