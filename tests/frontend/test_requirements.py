"""The package lists of each role, and the script that installs Horovod."""

import re
import shutil
import subprocess

import pytest

from impala_tf.frontend import project, requirements

SCRIPT = project.ROOT / "impala_tf" / "frontend" / "install_horovod.sh"
FAKE_PYTHON = """#!/bin/sh
echo "$@" >> calls
case "$*" in
*horovod.built_for*) [ "${INSTALLED:-}" = "$3" ]; exit ;;
*packages_distributions*) echo 2.18.1 ;;
*"pip download"*)
    while [ "$1" != -d ]; do shift; done
    tar -C source -czf "$2/horovod-0.28.1.tar.gz" horovod-0.28.1 ;;
*"pip install"*horovod-0.28.1/*)
    for last; do true; done
    cp -r "$last" built
    env | grep -e ^HOROVOD_ -e ^MAKEFLAGS= > flags ;;
esac
"""
TOOLS = ("cksum", "cmp", "cp", "cut", "dirname", "env", "grep", "gzip", "mktemp", "mv", "nproc",
         "rm", "sed", "tar")  # fmt: skip
CMAKE, GLOO = "horovod/tensorflow/CMakeLists.txt", "horovod/common/gloo/gloo_context.cc"
FLAGS = "CMakeLists.txt"
SOURCES = {
    CMAKE: "mpi_ops.cc\nxla_mpi_ops.cc\n",
    FLAGS: "# RelWithDebInfo uses -O2, prefer performance\nadd_library(horovod)\n",
    GLOO: """void GlooContext::Initialize(const std::string& gloo_iface) {
  device_attr.iface = gloo_iface_;
  auto dev = CreateDevice(device_attr);
void GlooContext::InitializeForProcessSet(const GlooContext& global_context,
  device_attr.iface = gloo_iface_;
  auto dev = CreateDevice(device_attr);
""",
    "horovod/__init__.py": "__version__ = '0.28.1'\n",
}
"""The lines of Horovod that the script changes, and some that it must not change."""


def name_of(requirement):
    return re.split(r"[\[<>=]", requirement)[0]


def test_a_learner_needs_everything_that_an_actor_needs():
    actor, learner = (requirements.of_role(role) for role in ("actor", "learner"))
    assert learner[: len(actor)] == actor
    with_tensorflow = requirements.of_role("actor", extras=["tensorflow"])
    assert {"paramiko", "av", *with_tensorflow[len(actor) :]} <= set(learner) - set(actor)
    assert any(requirement.startswith("tensorflow==") for requirement in with_tensorflow)


@pytest.mark.parametrize("role", ["actor", "learner"])
def test_every_requirement_is_pinned(role):
    pins = requirements.pinned(role)
    assert set(pins) == {name_of(requirement) for requirement in requirements.of_role(role)}
    assert requirements.pinned(role, with_horovod=True) == {**pins, "horovod": "0.28.1"}


def test_a_list_can_name_another_tensorflow(capsys):
    assert requirements.main(["learner"]) == 0
    ours = capsys.readouterr().out.splitlines()
    assert ours == requirements.of_role("learner")
    assert requirements.main(["learner", "tensorflow[and-cuda]"]) == 0
    others = capsys.readouterr().out.splitlines()
    assert "tensorflow==2.18.1" in ours
    assert others == [line.replace("tensorflow==", "tensorflow[and-cuda]==") for line in ours]


@pytest.mark.parametrize("arguments", [[], ["player"], ["actor", ""]])
def test_unknown_roles_are_refused(arguments, capsys):
    assert requirements.main(arguments) == 2
    assert "usage" in capsys.readouterr().err


def install_horovod(folder, programs=(), sources=SOURCES, **environment):
    """Runs the script with a stand-in for Python; returns how it ended and what Python was told."""
    path = folder / "bin"  # All of PATH, so that a real mpicxx is not found.
    path.mkdir(parents=True)
    for name in TOOLS:
        (path / name).symlink_to(str(shutil.which(name)))
    for name, text in {"python": FAKE_PYTHON, **dict(programs)}.items():
        (path / name).unlink(missing_ok=True)
        (path / name).write_text(text)
        (path / name).chmod(0o755)
    for name, text in sources.items():
        file = folder / "source" / "horovod-0.28.1" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    done = subprocess.run(
        [str(shutil.which("sh")), str(SCRIPT), "python", "--quiet"],
        env={"PATH": str(path), **environment}, cwd=folder,
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    return done, (folder / "calls").read_text().splitlines()


@pytest.mark.parametrize("has_mpi", [False, True])
def test_horovod_is_built_with_the_right_flags(tmp_path, has_mpi):
    programs = {"nproc": "#!/bin/sh\necho 3\n", "mpicxx": "#!/bin/sh\n"}
    if not has_mpi:
        del programs["mpicxx"]
    done, calls = install_horovod(tmp_path, programs, MAKEFLAGS=" -- ALL=1")
    assert done.returncode == 0, done.stderr
    build_tools, download, install = (line for line in calls if line.startswith("-m pip"))
    for line in (build_tools, download, install):
        assert f" -c {SCRIPT.parent}/../constraints.txt --quiet " in line
    assert " setuptools " in build_tools
    assert " --no-binary=horovod " in download
    assert download.endswith(" horovod"), "constraints.txt pins the version"
    assert " --no-build-isolation " in install
    assert set((tmp_path / "flags").read_text().split()) == {
        "HOROVOD_WITH_TENSORFLOW=1", "HOROVOD_WITHOUT_PYTORCH=1", "HOROVOD_WITHOUT_MXNET=1",
        "HOROVOD_WITH_GLOO=1", "HOROVOD_WITH_MPI=1" if has_mpi else "HOROVOD_WITHOUT_MPI=1",
        "MAKEFLAGS=-j3",
    }  # fmt: skip
    built = {name: (tmp_path / "built" / name).read_text() for name in SOURCES}
    assert built[CMAKE] == "mpi_ops.cc\n"
    assert built[FLAGS].startswith('string(REPLACE "-g" "" CMAKE_CXX_FLAGS_RELWITHDEBINFO')
    assert built[FLAGS].endswith("add_library(horovod)\n")
    before, _, after = built[GLOO].partition("::InitializeForProcessSet")
    assert "iface = gloo_iface_;" in before
    assert "iface = global_context.gloo_iface_;" in after


@pytest.mark.parametrize("changed", [CMAKE, FLAGS, GLOO])
def test_a_horovod_that_cannot_be_patched_is_not_built(tmp_path, changed):
    """It would compile for minutes and fail, or its learners would listen on loopback."""
    done, _ = install_horovod(tmp_path, sources={**SOURCES, changed: "other lines\n"})
    assert done.returncode == 1
    assert f"install_horovod.sh: {changed} of this Horovod has nothing to change" in done.stderr
    assert not (tmp_path / "built").exists()


def test_horovod_is_compiled_once_for_a_tensorflow(tmp_path):
    install_horovod(tmp_path / "first")
    marked = (tmp_path / "first" / "built" / "horovod" / "__init__.py").read_text()
    key = marked.split("built_for = ")[1].strip().strip("'")
    assert key.startswith("TensorFlow 2.18.1, ")
    done, calls = install_horovod(tmp_path / "again", INSTALLED=key)
    assert done.returncode == 0
    assert not [line for line in calls if "pip" in line]


def test_every_machine_gets_the_script():
    assert "impala_tf/frontend/install_horovod.sh" in project.files()


def test_an_installed_package_has_the_lists_and_a_script_too(tmp_path):
    """There is no checkout beside it."""
    shutil.copytree(project.ROOT / "impala_tf", tmp_path / "impala_tf")
    assert requirements.of_role("learner", tmp_path) == requirements.of_role("learner")
    script = project.files(root=tmp_path)["run_experiment.py"].read_text()
    assert "program()" in script
