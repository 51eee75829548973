"""The wheel, installed in an environment of its own, used from an empty folder."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from importlib import metadata

import pytest
from packaging.specifiers import SpecifierSet

from tests.helpers.runs import PROJECT

_PARTS = ("impala_tf", "pyproject.toml", "README.md", "LICENSE")
FLAGS = ("--level_name=CartPole-v1", "--total_environment_frames=4000", "--num_actors=1")

pytestmark = [pytest.mark.xdist_group("package"), pytest.mark.timeout(900)]


def run(*words, cwd, status=0, **environment):
    """Returns what a command prints, standard error included."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        words, cwd=cwd, env={**kept, **environment}, text=True, timeout=600,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == status, done.stdout[-3000:]
    return done.stdout


def wheel(folder):
    """Builds the wheel, as `make wheel` does; it has one top-level name."""
    for name in _PARTS:
        source = PROJECT / name
        copy = shutil.copytree if source.is_dir() else shutil.copy
        copy(source, folder / name)
    build = ("-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", "dist", ".")
    run(sys.executable, *build, cwd=folder)
    (built,) = (folder / "dist").glob("*.whl")
    names = {name.partition("/")[0] for name in zipfile.ZipFile(built).namelist()}
    assert {name for name in names if not name.endswith(".dist-info")} == {"impala_tf"}
    return built


@pytest.fixture(scope="module")
def bin_folder(tmp_path_factory):
    """The programs of an environment in which only the wheel was installed."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=True)
    python = str(folder / "bin" / "python")
    built = wheel(tmp_path_factory.mktemp("source"))
    what = ("-c", str(PROJECT / "impala_tf" / "constraints.txt"), f"{built}[learner]")
    # As in the Makefile: uv links what is in its cache, and pip knows where uv cannot reach.
    uv = (sys.executable, "-m", "uv", "pip", "install", "--system-certs", "--python", python)
    if subprocess.run((*uv, *what), capture_output=True).returncode:
        run(python, "-m", "pip", "install", "--quiet", *what, cwd=PROJECT)
    return folder / "bin"


def test_debian_12_has_a_python_for_every_package():
    """Its Python is 3.11.2."""
    names = re.findall(r"^([\w.-]+)==", (PROJECT / "impala_tf/constraints.txt").read_text(), re.M)
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):  # not needed on this machine
            pythons = metadata.metadata(name)["Requires-Python"] or ""
            assert SpecifierSet(pythons).contains("3.11.2"), name


def test_an_installed_package_launches_trains_and_evaluates_in_a_users_folder(bin_folder, tmp_path):
    """A launch on this machine has no checkout either, and its folder may have any file."""
    (tmp_path / "random.py").write_text("raise SystemExit('this is not the standard library')\n")
    header = "job,ip,tf_port,cuda_visible_devices"
    (tmp_path / "w.csv").write_text(f"{header}\nlearner,localhost,8473,-1\nactor,localhost,,-1\n")
    words = ("--workers_csv_path=w.csv", "--tmux_sess=package", "--logdir=run", *FLAGS)
    # Tests have a tmux server of their own.
    own = {"TMUX_TMPDIR": str(tmp_path)}
    impala = str(bin_folder / "impala")
    try:
        assert "done: 100%" in run(impala, "train", *words, cwd=tmp_path, **own)
        said = run(impala, "cluster", "status", "--logdir=run", cwd=tmp_path, **own)
        assert said.count(" finished ") == 2
    finally:
        subprocess.run(["tmux", "kill-session", "-t", "package"], env={**os.environ, **own})
    (tmp_path / "random.py").unlink()
    said = run(impala, "test", "--logdir=run", "--test_num_episodes=2", cwd=tmp_path)
    assert "2 games, sampled actions: mean " in said


def test_a_missing_extra_is_named_with_its_command(bin_folder, tmp_path):
    words = (str(bin_folder / "impala"), "train", "--level_name=procgen:coinrun")
    (line,) = run(*words, cwd=tmp_path, status=2).splitlines()
    assert line.startswith("impala: --level_name=procgen:coinrun: needs the extra procgen: ")
    assert line.endswith("'impala_tf[procgen]'")


def test_the_python_example_of_the_readme_runs(bin_folder, tmp_path):
    code = (PROJECT / "README.md").read_text().partition("```python\n")[2].partition("```")[0]
    assert "100_000" in code
    (tmp_path / "example.py").write_text(code.replace("100_000", "4_000"))
    said = run(str(bin_folder / "python"), "example.py", cwd=tmp_path)
    assert re.search(r"done: [\d,]+ of 4,000 frames", said)
    assert float(said.splitlines()[-1]) > 9  # no game of CartPole is shorter
