"""The name by which the processes of a run find a function of a script."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from impala_tf.api import levels
from impala_tf.config import ConfigError
from tests.helpers.runs import PROJECT

ASKS = """
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
from impala_tf.config import plug_ins
print(plug_ins.load("level_name", sys.argv[1])())
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


def test_what_is_made_from_a_module_beside_the_script_is_found(tmp_path: Path) -> None:
    """It was found where the run was started in the script's folder, and only there."""
    (tmp_path / "proj").mkdir()
    (tmp_path / "proj" / "beside.py").write_text("def level(): return 'of beside'\n")
    made = ASKS.replace("level_of(make)", "level_of(functools.partial(beside.level))")
    (tmp_path / "proj" / "train.py").write_text(f"import functools, beside\n{made}")
    assert told_by_a_process(tmp_path, "proj/train.py") == "of beside"


def test_a_function_of_standard_input_is_written(tmp_path: Path) -> None:
    """As a notebook's is."""
    assert told_by_a_process(tmp_path, "-c", f"def make(): return 'typed'\n{ASKS}") == "typed"


def test_a_level_that_cannot_be_written_is_refused_by_its_name() -> None:
    lock = threading.Lock()

    def make() -> Any:
        return lock

    with pytest.raises(ConfigError, match="^make: cannot be written .*define it in a module"):
        levels.level_of(make)


def test_a_script_trains_its_own_level_though_the_folder_has_a_file_of_its_name(
    tmp_path: Path,
) -> None:
    """Otherwise another level is trained, and nobody is told."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "train.py").write_text("def make(): return 'of the folder'\n")
    (tmp_path / "sub" / "train.py").write_text(f"def make(): return 'of the script'\n{ASKS}")
    assert told_by_a_process(tmp_path, "sub/train.py") == "of the script"


def test_a_level_of_a_module_that_runs_is_found(tmp_path: Path) -> None:
    """Also where it imports its neighbours only when it is called."""
    text = "def make():\n    from .beside import answer\n    return answer\n"
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "beside.py").write_text("answer = 'of pkg'\n")
    (tmp_path / "pkg" / "train.py").write_text(f"{text}{ASKS}")
    assert told_by_a_process(tmp_path, "-m", "pkg.train") == "of pkg"
