"""The name by which the processes of a run find a function of a script."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from impala_tf.api import levels
from impala_tf.config import ConfigError
from tests.helpers.runs import PROJECT

TOP = "def make(): pass\n"
GUARDED = """
class Other:
    def make(self): pass

if __name__ == "__main__":
    def make(): pass
"""
PRINTS = """
if __name__ == "__main__":
    from impala_tf.api import levels
    print(levels.level_of(make).name)
"""

ASKS = """
if __name__ == "__main__":
    import json, pathlib
    from impala_tf.api import levels
    level, logdir = levels.level_of(make), pathlib.Path("run")
    logdir.mkdir()
    levels.write(level, logdir)
    print(json.dumps([level.name, level.environment(logdir)]))
"""
# What a process of a run does, which `train` starts in the current folder.
CHILD = """
import sys
from impala_tf.environments import own_levels
module, _, name = sys.argv[1].partition(":")
print(getattr(own_levels.import_module("--level_name", module), name)())
"""


def told_by_a_process(folder: Path, *script: str) -> str:
    """Returns what the level of a script returns in a process of a run.

    Args:
      folder: the current one.
      script: what Python runs; it ends with ASKS.
    """
    name, variables = json.loads(_python(folder, {}, *script))
    return _python(folder, variables, "-P", "-c", CHILD, name)


def _python(folder: Path, variables: dict[str, str], *words: str) -> str:
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, cwd=folder,
        env={"PYTHONPATH": str(PROJECT), **variables}, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def named(path: Path | None, text: str) -> str:
    """Returns the name of a script's level; of None, the script is standard input."""
    if path is not None:
        path.write_text(text + PRINTS)
    done = subprocess.run(
        [sys.executable, path or "-"], input=text + PRINTS, capture_output=True, text=True,
        cwd=PROJECT, env={"PYTHONPATH": str(PROJECT)}, timeout=60,
    )  # fmt: skip
    if done.returncode:
        raise ConfigError(done.stderr.strip().splitlines()[-1])
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("text", "name"), [(TOP, "lam:make"), (GUARDED, "notebook_make:make"),
                       (f"{TOP}{GUARDED}", "notebook_make:make"),
                       (f"{GUARDED.replace('def make(): pass', 'pass')}{TOP}", "lam:make"),
                       (GUARDED.replace('"__main__":', '"__main__" and True:'),
                        "notebook_make:make"),
                       (GUARDED.replace("def make(): pass", "make = type('make', (), {})"),
                        "notebook_make:make")],
)  # fmt: skip
def test_what_processes_cannot_import_from_a_script_is_written(
    tmp_path: Path, text: str, name: str
) -> None:
    """They import it under its own name, so what is under its guard is not there."""
    assert named(tmp_path / "lam.py", text) == name


def test_what_is_written_finds_the_modules_beside_the_script(tmp_path: Path) -> None:
    text = GUARDED + PRINTS.replace(".name)", ".folder)")
    (tmp_path / "lam.py").write_text(text)
    done = subprocess.run(
        [sys.executable, tmp_path / "lam.py"], capture_output=True, text=True,
        cwd=PROJECT, env={"PYTHONPATH": str(PROJECT)}, timeout=60,
    )  # fmt: skip
    assert done.stdout.strip() == str(tmp_path), done.stderr


@pytest.mark.parametrize(
    "make",
    [
        "lambda: beside.Level()",
        "functools.partial(beside.Level)",
        "(lambda: lambda: beside.Level())()",
        "functools.partial(lambda make: make(), beside.Level)",
    ],
)
def test_what_is_made_from_a_module_beside_the_script_is_found(tmp_path: Path, make: str) -> None:
    """It was found where the run was started in the script's folder, and only there."""
    (tmp_path / "proj").mkdir()
    (tmp_path / "proj" / "beside.py").write_text(
        "class Level:\n    def __repr__(self): return 'of beside'\n"
    )
    (tmp_path / "proj" / "train.py").write_text(
        f"import functools, beside\n{ASKS.replace('level_of(make)', f'level_of({make})')}"
    )
    assert told_by_a_process(tmp_path, "proj/train.py") == "of beside"


def test_a_function_of_standard_input_is_written() -> None:
    assert named(None, TOP) == "notebook_make:make"


@pytest.mark.parametrize(
    ("file", "problem"),
    [
        ("my-script.py", "its name is not that of a module; rename it, such as to my_script.py"),
        ("1st.py", "its name is not that of a module; rename it, such as to level_1st.py"),
        ("script", "its name is not that of a module; rename it, such as to script.py"),
        ("random.py", "another module has its name (/"),
        ("sys.py", "another module has its name (built-in); rename the file"),
    ],
)
def test_a_script_that_processes_cannot_import_is_refused_with_the_reason(
    tmp_path: Path, file: str, problem: str
) -> None:
    text = f"import sys; sys.path.append(sys.path.pop(0))\n{TOP}"  # it may not be in the way here
    with pytest.raises(ConfigError) as caught:
        named(tmp_path / file, text)
    assert f"{file}: the processes of a run import this file for make, but {problem}" in str(
        caught.value
    )


def test_a_script_trains_its_own_level_though_the_folder_has_a_file_of_its_name(
    tmp_path: Path,
) -> None:
    """Otherwise another level is trained, and nobody is told."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "train.py").write_text("def make(): return 'of the folder'\n")
    (tmp_path / "sub" / "train.py").write_text(f"def make(): return 'of the script'\n{ASKS}")
    assert told_by_a_process(tmp_path, "sub/train.py") == "of the script"


def test_a_level_in_a_folder_without_init_is_found(tmp_path: Path) -> None:
    """A script that is started from another folder imports it from beside itself."""
    (tmp_path / "proj" / "envs").mkdir(parents=True)
    (tmp_path / "proj" / "envs" / "my.py").write_text("def make(): return 'of envs'\n")
    (tmp_path / "proj" / "train.py").write_text(f"from envs.my import make\n{ASKS}")
    assert told_by_a_process(tmp_path, "proj/train.py") == "of envs"


@pytest.mark.parametrize("init", [True, False])
@pytest.mark.parametrize(
    "text",
    [
        "from .beside import answer\ndef make(): return answer\n",
        'if __name__ == "__main__":\n'
        "    def make():\n        from .beside import answer\n        return answer\n",
    ],
)
def test_a_level_of_a_module_that_runs_is_found(tmp_path: Path, text: str, init: bool) -> None:
    """What is under the guard of `python -m pkg.train` was sought in the module, and not found."""
    (tmp_path / "pkg").mkdir()
    if init:
        (tmp_path / "pkg" / "__init__.py").touch()
    (tmp_path / "pkg" / "beside.py").write_text("answer = 'of pkg'\n")
    (tmp_path / "pkg" / "train.py").write_text(f"{text}{ASKS}")
    assert told_by_a_process(tmp_path, "-m", "pkg.train") == "of pkg"


def test_a_function_is_the_same_however_its_globals_change() -> None:
    def made(source):
        names: dict[str, Any] = {}
        exec(source, names)  # as a cell of a notebook
        return names["make"]

    count = "calls = 0\ndef make(size={}):\n    global calls\n    calls += 1\n    return size"
    first, again, other = made(count.format(1)), made(count.format(1)), made(count.format(2))
    first()
    assert levels.identity(first) == levels.identity(again) != levels.identity(other)


CLASS = """
import gymnasium
class make(gymnasium.Env):
    sizes = [1, 2]
    def reward(self): return {}
    @staticmethod
    def end(): return {}
    @property
    def length(self): return super().spec, {}
"""


def test_a_class_is_the_same_if_it_is_defined_in_the_same_way() -> None:
    """The usual level of a notebook: a cell that is edited and runs again."""

    def made(*numbers):
        names: dict[str, Any] = {"__name__": "__main__"}
        exec(CLASS.format(*numbers), names)
        return levels.identity(names["make"])

    assert made(1, 2, 3) == made(1, 2, 3)
    for other in ((0, 2, 3), (1, 0, 3), (1, 2, 0)):
        assert made(*other) != made(1, 2, 3)


def test_a_function_may_call_itself() -> None:
    """A maze is often carved so."""

    def made(size):
        def carve(cells):
            return cells if len(cells) == size else carve([*cells, 0])

        def make():
            return carve([]), later

        if size < 0:
            later = None
        return make

    assert levels.identity(made(3)) == levels.identity(made(3)) != levels.identity(made(4))
