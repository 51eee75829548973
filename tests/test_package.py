"""The wheel, installed in an environment of its own, used from an empty folder."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile

import pytest

from tests.helpers.runs import PROJECT

_PARTS = ("impala_tf", "pyproject.toml", "README.md", "LICENSE")
FLAGS = ("--level_name=CartPole-v1", "--total_environment_frames=4000", "--num_actors=1")

pytestmark = [pytest.mark.xdist_group("package"), pytest.mark.timeout(900)]


def run(*words, cwd, status=0, **environment):
    """Returns what a command prints, standard error included."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        words,
        cwd=cwd,
        env={**kept, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )
    assert done.returncode == status, done.stdout[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, as `make wheel` builds it."""
    folder = tmp_path_factory.mktemp("source")
    for name in _PARTS:
        source = PROJECT / name
        copy = shutil.copytree if source.is_dir() else shutil.copy
        copy(source, folder / name)
    build = ("-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", "dist", ".")
    run(sys.executable, *build, cwd=folder)
    (built,) = (folder / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def bin_folder(wheel, tmp_path_factory):
    """The programs of an environment in which only the wheel was installed."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=True)
    python = str(folder / "bin" / "python")
    what = ("-c", str(PROJECT / "impala_tf" / "constraints.txt"), f"{wheel}[learner]")
    # As in the Makefile: uv links what is in its cache, and pip knows where uv cannot reach.
    uv = (sys.executable, "-m", "uv", "pip", "install", "--system-certs", "--python", python)
    if subprocess.run((*uv, *what), capture_output=True).returncode:
        run(python, "-m", "pip", "install", "--quiet", *what, cwd=PROJECT)
    return folder / "bin"


def test_a_wheel_has_one_top_level_name(wheel):
    names = {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {name for name in names if not name.endswith(".dist-info")} == {"impala_tf"}


def test_an_installed_package_trains_and_evaluates_in_an_empty_folder(bin_folder, tmp_path):
    impala = str(bin_folder / "impala")
    said = run(impala, "train", *FLAGS, cwd=tmp_path)
    assert re.search(r"done: [\d,]+ of 4,000 frames", said)
    logdir = "--logdir=runs/CartPole-v1-MLPAgent-appo-1"
    assert f"/impala test {logdir} --video" in said
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
    said = run(impala, "test", logdir, "--test_num_episodes=2", cwd=tmp_path)
    assert "2 games, sampled actions: mean " in said


def test_it_launches_a_run(bin_folder, tmp_path):
    """A launch on this machine has no checkout either, and its folder may have any file."""
    (tmp_path / "random.py").write_text("raise SystemExit('this is not the standard library')\n")
    header = "job,ip,tf_port,cuda_visible_devices"
    (tmp_path / "w.csv").write_text(f"{header}\nlearner,localhost,8473,-1\nactor,localhost,,-1\n")
    words = ("--workers_csv_path=w.csv", "--tmux_sess=package", "--logdir=run", *FLAGS)
    # Tests have a tmux server of their own.
    own = {"TMUX_TMPDIR": str(tmp_path)}
    try:
        assert "done: 100%" in run(str(bin_folder / "impala"), "train", *words, cwd=tmp_path, **own)
        said = run(
            str(bin_folder / "impala"), "cluster", "status", "--logdir=run", cwd=tmp_path, **own
        )
        assert said.count(" finished ") == 2
    finally:
        subprocess.run(["tmux", "kill-session", "-t", "package"], env={**os.environ, **own})


def test_a_missing_extra_is_named_with_its_command(bin_folder, tmp_path):
    said = run(
        str(bin_folder / "impala"), "train", "--level_name=procgen:coinrun", cwd=tmp_path, status=2
    )
    (line,) = said.splitlines()
    assert line.startswith("impala: --level_name=procgen:coinrun: needs the extra procgen: ")
    assert line.endswith("'impala_tf[procgen]'")


def test_the_python_example_of_the_readme_runs(bin_folder, tmp_path):
    code = (PROJECT / "README.md").read_text().partition("```python\n")[2].partition("```")[0]
    (tmp_path / "example.py").write_text(code)
    said = run(str(bin_folder / "python"), "example.py", cwd=tmp_path)
    assert float(said.splitlines()[-1]) > 9  # no game of CartPole is shorter
