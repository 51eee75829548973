"""The names by which the processes of a run find the objects of a script."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import impala_tf as impala
from impala_tf.api import objects
from impala_tf.api.objects import Objects
from impala_tf.logdir import Logdir
from tests.helpers import arguments
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
SAID = "of the script"
BESIDE = {
    "sub/beside.py": f"def level(): return {SAID!r}\n",
    "sub/train.py": f"import functools, beside\nmake = functools.partial(beside.level)\n{ASKS}",
}
SAME_NAME = {
    "train.py": "def make(): return 'of the folder'\n",
    "sub/train.py": f"def make(): return {SAID!r}\n{ASKS}",
}


def printed_by(folder: Path, variables: dict[str, str], *words: str) -> str:
    """Returns what Python prints in a folder."""
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


@pytest.mark.parametrize("files", [BESIDE, SAME_NAME], ids=["beside it", "of a name that is there"])
def test_processes_of_a_run_find_the_level_of_its_script(
    tmp_path: Path, files: dict[str, str]
) -> None:
    """Otherwise another level may be trained, and nobody is told."""
    (tmp_path / "sub").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    name, variables = json.loads(printed_by(tmp_path, {}, "sub/train.py"))
    assert printed_by(tmp_path, variables, "-P", "-c", CHILD, name) == SAID


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
