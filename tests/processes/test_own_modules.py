"""A run's level is the file that it was trained with, not another one of the same name."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from impala_tf.config import ConfigError, Given, to_dict
from impala_tf.logdir import Logdir
from impala_tf.processes import evaluate_main, own_modules, players, provenance, run_folder
from impala_tf.processes.common import resolve
from impala_tf.processes.trained_flags import as_trained

NAME = "trains_a_level"
LEVEL = f"{NAME}:make_level"
TEXT = """
import gymnasium

def make_level():
    return gymnasium.make("CartPole-v1", max_episode_steps={steps})
"""
ASKED = Given({"mode": "test", "trust_level_module": True})

Enter = Callable[[Path], None]


@pytest.fixture
def enter(monkeypatch: pytest.MonkeyPatch) -> Enter:
    """Goes to a folder, as a new process would start there."""
    path = list(sys.path)

    def go(folder: Path) -> None:
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "path", list(path))
        monkeypatch.delitem(sys.modules, NAME, raising=False)

    return go


@pytest.fixture
def run(tmp_path: Path, enter: Enter) -> Path:
    """A run that was trained on the level in the folder `one`; the one in `other` differs."""
    for name, steps in (("one", 20), ("other", 30)):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{NAME}.py").write_text(TEXT.format(steps=steps))
    enter(tmp_path / "one")
    logdir = tmp_path / "run"
    logdir.mkdir()
    config, spec = resolve(Given({"level_name": LEVEL, "logdir": str(logdir)}))
    described = provenance.describe(config, spec, {}, 0, "CPU")
    (logdir / "config.json").write_text(json.dumps(described))
    return logdir


def played(logdir: Path, **flags: object) -> int:
    """Returns the longest episode of the level that --mode=test plays."""
    return resolve(as_trained(ASKED.replace(logdir=str(logdir), **flags)))[1].time_limit


def resume(logdir: Path) -> None:
    """Checks what a run in the folder checks before it trains."""
    config, spec = resolve(Given({"level_name": LEVEL, "logdir": str(logdir)}))
    run_folder.check_same_run(config, spec, Logdir(logdir))


def test_another_file_of_the_name_is_neither_played_nor_trained(
    run: Path, tmp_path: Path, enter: Enter
) -> None:
    one, other = (tmp_path / name / f"{NAME}.py" for name in ("one", "other"))
    for use in (played, resume):
        enter(other.parent)
        with pytest.raises(ConfigError) as caught:
            use(run)
        assert caught.value.problems == [
            f"--logdir={run}: was trained with {one}, but the module {NAME} that is found here is"
            f" {other}, which differs; start the command in {one.parent}, give another --logdir,"
            f' or, to use the one found here, remove "modules" from {run}/config.json'
        ]
    enter(other.parent)
    assert played(run, level_name=LEVEL) == 30  # the one that the user names


def test_the_runs_own_file_is_found_from_any_folder(
    run: Path, tmp_path: Path, enter: Enter
) -> None:
    enter(tmp_path)
    assert played(run) == 20
    enter(tmp_path / "one")
    # Of another size: within a second, Python takes a file of the same size for the compiled one.
    (tmp_path / "one" / f"{NAME}.py").write_text(TEXT.format(steps=100))
    assert played(run) == 100
    resume(run)


def test_a_resume_says_that_the_level_has_changed(run: Path, tmp_path: Path, enter: Enter) -> None:
    """One curve would mix two levels, and nothing would say where."""
    config, spec = resolve(Given({"level_name": LEVEL, "logdir": str(run)}))
    assert run_folder.level_changes(config, spec, Logdir(run)) == []
    file = tmp_path / "one" / f"{NAME}.py"
    file.write_text(TEXT.format(steps=100))
    enter(tmp_path / "one")
    config, spec = resolve(Given({"level_name": LEVEL, "logdir": str(run)}))
    changed, protocol = run_folder.level_changes(config, spec, Logdir(run))
    assert changed == f"note: {file} has changed since the run was last started"
    assert "at most 20 frames; it is now Gymnasium" in protocol and "at most 100" in protocol
    before = provenance.read(Logdir(run))
    described = provenance.describe(config, spec, before, 50, "CPU")
    assert [("protocol" in entry) for entry in described["history"]] == [True, True]
    again = provenance.describe(config, spec, described, 60, "CPU")
    assert "protocol" not in again["history"][-1]


def test_an_evaluation_says_that_the_level_has_changed(
    run: Path,
    tmp_path: Path,
    enter: Enter,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A score of another level than the trained one would pass for a worse agent."""
    config, spec = resolve(Given({"level_name": LEVEL, "logdir": str(run)}))
    agent = SimpleNamespace(
        is_exported=False,
        logdir=Logdir(run),
        flags=to_dict(config),
        evaluation=config.evaluation,
        spec=spec,
    )
    monkeypatch.setattr(players, "load", lambda given, choose_device: agent)
    evaluate_main.load(ASKED)
    assert capsys.readouterr().out == ""
    file = tmp_path / "one" / f"{NAME}.py"
    file.write_text(TEXT.format(steps=100))
    evaluate_main.load(ASKED)
    assert capsys.readouterr().out == f"note: {file} has changed since the run was last started\n"


def test_a_copy_is_not_another_file(run: Path, tmp_path: Path, enter: Enter) -> None:
    shutil.copytree(tmp_path / "one", tmp_path / "copy")
    enter(tmp_path / "copy")
    assert played(run) == 20
    resume(run)


def test_a_run_whose_files_are_on_another_machine_goes_on(
    run: Path, tmp_path: Path, enter: Enter
) -> None:
    (tmp_path / "one").rename(tmp_path / "elsewhere")
    enter(tmp_path / "other")
    assert played(run) == 30
    resume(run)


def test_a_file_that_this_user_may_not_see_is_as_if_it_were_not_here(
    run: Path, tmp_path: Path, enter: Enter, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden, stat = tmp_path / "one", os.stat

    def refused(path: Any, *arguments: Any, **options: Any) -> os.stat_result:
        if str(path).startswith(f"{hidden}/"):
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path, *arguments, **options)

    enter(tmp_path / "other")
    monkeypatch.setattr("os.stat", refused)
    assert played(run) == 30


def test_what_a_launch_copies_is_not_recorded() -> None:
    """It lies beside the package, in a folder that is another one after each launch."""
    assert own_modules.files(Given({"level_name": "tests.helpers.worlds:MaskedCartPole"})) == {}
    assert own_modules.files(Given({"level_name": "CartPole-v1"})) == {}


def test_the_files_of_packages_are_recorded(
    tmp_path: Path, enter: Enter, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_package").mkdir()
    (tmp_path / "own_package" / "__init__.py").write_text("Torso = None")
    (tmp_path / "own_package" / "levels.py").write_text(TEXT.format(steps=20))
    enter(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    flags = {"level_name": "own_package.levels:make_level", "agent_name": "own_package:Torso"}
    recorded = own_modules.files(Given(flags))
    assert recorded == {
        "own_package": str(tmp_path / "own_package" / "__init__.py"),
        "own_package.levels": str(tmp_path / "own_package" / "levels.py"),
    }
    assert "own_package" not in sys.modules
    enter(tmp_path.parent)
    own_modules.look_where_recorded({"modules": recorded}, "run", recorded)
    assert sys.path[-1] == str(tmp_path)
