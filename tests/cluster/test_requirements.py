"""The package lists of each role, and the script that installs Horovod."""

import re
import shutil
import subprocess
import sys

import pytest

from impala_tf.cluster import code, requirements


def name_of(requirement):
    return re.split(r"[\[<>=]", requirement)[0]


@pytest.mark.parametrize("role", ["actor", "learner"])
def test_every_requirement_is_pinned(role):
    pins = requirements.pinned(role)
    assert set(pins) == {name_of(requirement) for requirement in requirements.of_role(role)}
    assert requirements.pinned(role, with_horovod=True) == {**pins, "horovod": "0.28.1"}


def test_a_list_can_name_another_tensorflow():
    def printed(*words):
        command = [sys.executable, "-m", "impala_tf.cluster.requirements", "learner", *words]
        return subprocess.check_output(command, cwd=requirements.ROOT, text=True).splitlines()

    ours, others = printed(), printed("tensorflow[and-cuda]")
    assert ours == requirements.of_role("learner")
    assert "tensorflow==2.18.1" in ours
    assert others == [line.replace("tensorflow==", "tensorflow[and-cuda]==") for line in ours]


def test_an_installed_package_has_the_lists_and_a_script_too(tmp_path):
    """There is no checkout beside it."""
    shutil.copytree(requirements.ROOT / "impala_tf", tmp_path / "impala_tf")
    assert requirements.of_role("learner", tmp_path) == requirements.of_role("learner")
    script = code.files(root=tmp_path)["run_experiment.py"].read_text()
    assert "program()" in script
