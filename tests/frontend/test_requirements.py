"""The package lists of each role, and the script that installs Horovod."""

import re
import shutil
import subprocess

import pytest

from impala_tf.frontend import project, requirements

SCRIPT = project.ROOT / "impala_tf" / "frontend" / "install_horovod.sh"
FAKE_PYTHON = """#!/bin/sh
echo "$@"
env | grep ^HOROVOD_ || true
"""


def name_of(requirement):
    return re.split(r"[\[=]", requirement)[0]


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


@pytest.mark.parametrize("has_mpi", [False, True])
def test_horovod_is_built_with_the_right_flags(tmp_path, has_mpi):
    folder = tmp_path / "bin"  # All of PATH, so that a real mpicxx is not found.
    folder.mkdir()
    for name in ("dirname", "env", "grep"):
        (folder / name).symlink_to(str(shutil.which(name)))
    programs = {folder / "python": FAKE_PYTHON}
    if has_mpi:
        programs[folder / "mpicxx"] = "#!/bin/sh\n"
    for path, text in programs.items():
        path.write_text(text)
        path.chmod(0o755)
    command = [str(shutil.which("sh")), str(SCRIPT), "python", "--quiet"]
    done = subprocess.run(
        command, env={"PATH": str(folder)}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    build_tools, horovod, *flags = done.stdout.splitlines()
    for line in (build_tools, horovod):
        assert line.startswith("-m pip install ")
        assert f" -c {SCRIPT.parent}/../constraints.txt " in line
        assert " --quiet " in line
    assert " setuptools " in build_tools
    assert horovod.endswith(" --no-build-isolation horovod"), "constraints.txt pins the version"
    assert ("--no-cache-dir" in horovod) == has_mpi
    assert set(flags) == {
        "HOROVOD_WITH_TENSORFLOW=1", "HOROVOD_WITHOUT_PYTORCH=1", "HOROVOD_WITHOUT_MXNET=1",
        "HOROVOD_WITH_GLOO=1", "HOROVOD_WITH_MPI=1" if has_mpi else "HOROVOD_WITHOUT_MPI=1",
    }  # fmt: skip


def test_every_machine_gets_the_script():
    assert "impala_tf/frontend/install_horovod.sh" in project.files()


def test_an_installed_package_has_the_lists_and_a_script_too(tmp_path):
    """There is no checkout beside it."""
    shutil.copytree(project.ROOT / "impala_tf", tmp_path / "impala_tf")
    assert requirements.of_role("learner", tmp_path) == requirements.of_role("learner")
    script = project.files(root=tmp_path)["run_experiment.py"].read_text()
    assert "sys.exit(main())" in script
