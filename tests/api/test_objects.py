"""The names by which the processes of a run find the objects of a script."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import impala_tf as impala
from impala_tf.algorithms import appo
from impala_tf.api import objects
from impala_tf.api.objects import Objects
from impala_tf.logdir import Logdir
from tests.helpers import arguments, own_algorithm
from tests.helpers.runs import PROJECT

ASKS = """
import json, pathlib
from impala_tf.api import objects
own, logdir = objects.Objects(), pathlib.Path("run")
name = own.name("level", make)
logdir.mkdir()
own.write(logdir)
print(json.dumps([name, objects.environment(logdir)]))
"""
# What a process of a run does, which `train` starts in the current folder.
CHILD = """
import sys
from impala_tf.config import plug_ins
print(plug_ins.load("level_name", sys.argv[1])())
"""


def told_by_a_process(folder: Path, *script: str) -> str:
    """Returns what the object of a script, called in a process of a run, returns.

    Args:
      folder: the current one.
      script: what Python runs; it ends with ASKS.
    """
    name, variables = json.loads(_python(folder, {}, *script))
    return _python(folder, variables, "-P", "-c", CHILD, name)


def _python(folder: Path, variables: dict[str, str], *words: str) -> str:
    done = subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        cwd=folder,
        env={"PYTHONPATH": str(PROJECT), **variables},
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_what_is_made_from_a_module_beside_the_script_is_found(tmp_path: Path) -> None:
    (tmp_path / "proj").mkdir()
    (tmp_path / "proj" / "beside.py").write_text("def level(): return 'of beside'\n")
    made = ASKS.replace(", make)", ", functools.partial(beside.level))")
    (tmp_path / "proj" / "train.py").write_text(f"import functools, beside\n{made}")
    assert told_by_a_process(tmp_path, "proj/train.py") == "of beside"


def test_what_standard_input_defines_is_written(tmp_path: Path) -> None:
    """As a notebook does. An instance keeps what it was made with."""
    text = "class Adds:\n  def __init__(self, n): self.n = n\n  def __call__(self): return self.n\n"
    assert told_by_a_process(tmp_path, "-c", f"{text}\nmake = Adds(3)\n{ASKS}") == "3"


def test_a_script_trains_its_own_level_though_the_folder_has_a_file_of_its_name(
    tmp_path: Path,
) -> None:
    """Otherwise another level is trained, and nobody is told."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "train.py").write_text("def make(): return 'of the folder'\n")
    (tmp_path / "sub" / "train.py").write_text(f"def make(): return 'of the script'\n{ASKS}")
    assert told_by_a_process(tmp_path, "sub/train.py") == "of the script"


def test_an_object_of_a_module_that_runs_is_found(tmp_path: Path) -> None:
    """Also where it imports its neighbours only when it is called."""
    text = "def make():\n    from .beside import answer\n    return answer\n"
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "beside.py").write_text("answer = 'of pkg'\n")
    (tmp_path / "pkg" / "train.py").write_text(f"{text}{ASKS}")
    assert told_by_a_process(tmp_path, "-m", "pkg.train") == "of pkg"


def test_what_modules_have_is_named_as_on_the_command_line() -> None:
    own = Objects()
    assert own.name("algorithm", appo.ALGORITHM) == "appo"
    record = own_algorithm.WAITS
    assert own.name("algorithm", record) == "tests.helpers.own_algorithm:WAITS"
    assert own.name("callbacks", impala.Callback) == "impala_tf.callbacks:Callback"
    made = [own.name("callbacks", impala.Callback()) for _ in range(2)]
    assert len({*made}) == 2  # each is written, with its own state


def test_what_cannot_be_written_is_refused_by_its_name() -> None:
    lock = threading.Lock()

    def make() -> object:
        return lock

    with pytest.raises(impala.ConfigError, match="^level: make cannot be written .* in a module"):
        Objects().name("level", make)


def test_the_typed_arguments_are_those_of_the_flags() -> None:
    """CONTRIBUTING.md says how to write the file again."""
    assert arguments.FILE.read_text() == arguments.text()


def test_a_finished_run_of_somebody_else_is_not_this_process_s(tmp_path: Path) -> None:
    """`train` leaves it as it is, so it may name a module that the call does not."""
    config = Logdir(tmp_path).config
    flags = {"level_name": "CartPole-v1", "level_wrappers": "", "agent_name": "MLPAgent"}
    own = {**flags, "algorithm": "appo"}
    config.write_text(json.dumps({"flags": own}))
    assert not objects.is_own(tmp_path), "no call has trained there"
    objects.note_trained(tmp_path, own)
    assert objects.is_own(tmp_path)
    for name in own:
        config.write_text(json.dumps({"flags": {**own, name: "evil:Net"}}))
        assert not objects.is_own(tmp_path)
    config.write_text("7")
    assert not objects.is_own(tmp_path)
