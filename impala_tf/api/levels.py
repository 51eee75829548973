"""Levels made by a function or class of the user: under which names processes find them."""

from __future__ import annotations

import base64
import os
import re
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from impala_tf.config import ConfigError, plug_ins
from impala_tf.logdir import replace_file

CHILD_VARIABLE = "IMPALA_TF_IS_CHILD"
"""Environment variable that marks the processes that `train` starts."""
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
    module: str = ""
    """The text of its module, which is written into the logdir; '': there is a module already."""

    def environment(self, logdir: Path) -> dict[str, str]:
        """Returns the variables with which the processes of a run find the user's modules."""
        of_python = (sys.prefix, sys.base_prefix)
        folders = [str(Path(folder).absolute()) for folder in sys.path]
        own = [folder for folder in folders if not folder.startswith(of_python)]
        before = os.environ.get(plug_ins.FOLDERS_VARIABLE)
        own = [*own, str(logdir.absolute()), *([before] if before else [])]
        return {plug_ins.FOLDERS_VARIABLE: os.pathsep.join(own), CHILD_VARIABLE: "1"}


def level_of(level: str | Callable[..., Any]) -> Level:
    """Returns the level for a name, or for a callable that makes a Gymnasium environment.

    A callable at the top level of a module is imported from there. Others (those of a script or a
    notebook, lambdas, inner functions) are written to a module in the logdir.

    Raises:
      ConfigError: it is no callable, or cannot be written.
    """
    if isinstance(level, str):
        return Level(level)
    if not callable(level):
        raise ConfigError(
            f"level={level!r}: must be a level's name, or a function or class that makes an"
            " environment"
        )
    module, name = getattr(level, "__module__", None) or "", getattr(level, "__qualname__", "")
    if module != "__main__" and getattr(sys.modules.get(module), name, None) is level:
        return Level(f"{module}:{name}")
    return _written(level)


def _written(level: Callable[..., Any]) -> Level:
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
    return Level(f"{module.__name__}:{name}", _MODULE.format(name=name, data=data))


def write(level: Level, logdir: Path) -> None:
    """Writes a level's module into the logdir, if it has none, readable only by this user."""
    if level.module:
        replace_file(logdir / f"{level.name.partition(':')[0]}.py", level.module.encode())
