"""Objects of the user's own, such as a level or a torso: how the processes of a run find them."""

from __future__ import annotations

import base64
import os
import re
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from impala_tf.config import ALGORITHMS, Algorithm, ConfigError, plug_ins
from impala_tf.logdir import Logdir, read_json, replace_file

CHILD_VARIABLE = "IMPALA_TF_IS_CHILD"
"""Environment variable that marks the processes that `train` starts."""
_NAMING = ("level_name", "level_wrappers", "agent_name", "algorithm")  # may name modules
_TRAINED_HERE: dict[Path, list[Any]] = {}  # the values of _NAMING in this process's calls
_MODULE = '''"""Written by impala_tf.train for {name} of a notebook or script.

Runs that object's code, as importing any module does.
"""

import base64

import cloudpickle

{name} = cloudpickle.loads(base64.b64decode("""
{data}
"""))
'''


def note_trained(logdir: Path, flags: Mapping[str, Any]) -> None:
    """Notes which modules this process's own call has named for the run in a folder."""
    _TRAINED_HERE[logdir.resolve()] = [flags[name] for name in _NAMING]


def is_own(logdir: Path) -> bool:
    """Returns whether a folder names only what this process's own call has named.

    A finished run of somebody else, which `train` leaves as it is, may name other modules.
    """
    if (named := _TRAINED_HERE.get(logdir.resolve())) is None:
        return False
    try:
        flags = read_json(Logdir(logdir).config)["flags"]
        return [flags[name] for name in _NAMING] == named
    except (OSError, ValueError, LookupError, TypeError):
        return False


class Objects:
    """Names the objects of a call to `train`, as the command line names them.

    What a module has at its top level is imported from there. Everything else (what a script or a
    notebook has, lambdas, inner functions, instances) is written to modules in the logdir.
    """

    def __init__(self) -> None:
        self._written: dict[str, str] = {}

    def name(self, argument: str, value: Any) -> str:
        """Returns module:NAME of an object, or the value itself if it is a text.

        Raises:
          ConfigError: the object has no module, and cannot be written.
        """
        if isinstance(value, str):
            return value
        module, name = _home(value)
        for built_in, home in ALGORITHMS.items():
            if (module, name) == (home, "ALGORITHM"):
                return built_in
        if module != "__main__" and getattr(sys.modules.get(module), name, None) is value:
            return f"{module}:{name}"
        plain = re.sub(r"\W+", "_", name.rpartition(".")[2]).strip("_")
        name = plain if plain.isidentifier() and plain != "lambda" else f"my_{argument}"
        while plug_ins.WRITTEN + name in self._written:
            name += "_"
        return self._write(argument, name, value)

    def _write(self, argument: str, name: str, value: Any) -> str:
        # Only used to write; nothing in this package reads the result. Gymnasium depends on it.
        import cloudpickle

        try:
            data = base64.encodebytes(cloudpickle.dumps(value)).decode().strip()
        except Exception as error:  # whatever the user's objects raise
            raise ConfigError(
                f"{argument}: {name} cannot be written to a file for the processes of a run"
                f" ({error}); define it in a module"
            ) from error
        module = types.ModuleType(plug_ins.WRITTEN + name)
        setattr(module, name, value)
        sys.modules[module.__name__] = module  # so that this process needs no file
        self._written[module.__name__] = _MODULE.format(name=name, data=data)
        return f"{module.__name__}:{name}"

    def write(self, logdir: Path) -> None:
        """Writes the modules into the logdir, readable only by this user."""
        for module, text in self._written.items():
            replace_file(logdir / f"{module}.py", text.encode())


def _home(value: Any) -> tuple[str, str]:
    """Returns the module of an object, or '', and its name there."""
    if hasattr(value, "__qualname__"):  # a class or a function
        return getattr(value, "__module__", None) or "", value.__qualname__
    if isinstance(value, Algorithm):
        for module, content in list(sys.modules.items()):
            for name, each in list(getattr(content, "__dict__", {}).items()):
                if each is value and not name.startswith("_"):  # as _ of the interactive Python
                    return module, name
    return "", type(value).__qualname__


def environment(logdir: Path) -> dict[str, str]:
    """Returns the variables with which the processes of a run find the user's modules."""
    of_python = (sys.prefix, sys.base_prefix)
    folders = [str(Path(folder).absolute()) for folder in sys.path]
    own = [folder for folder in folders if not folder.startswith(of_python)]
    before = os.environ.get(plug_ins.FOLDERS_VARIABLE)
    own = [*own, str(logdir.absolute()), *([before] if before else [])]
    return {plug_ins.FOLDERS_VARIABLE: os.pathsep.join(own), CHILD_VARIABLE: "1"}
