"""`impala cluster setup`: copies the project and installs its packages, behind a real sshd."""

import subprocess
import sys
import zipfile

import pytest

from impala_tf.cluster import requirements
from impala_tf.cluster.runner import ClusterError, LocalRunner
from impala_tf.cluster.setup import look
from tests.helpers.machine_setup import Setup
from tests.helpers.sshd import running_sshd


def test_the_project_is_copied_and_its_packages_are_installed(setup, small_project, tmp_path):
    workdir = tmp_path / "there; $(touch x)"
    assert setup.run().startswith("node1: ready: 1 packages as pinned")
    assert (workdir / "impala_tf" / "a.py").read_text() == "A = 1\n"
    assert setup.version("iniconfig") == "2.1.0"
    python = (workdir / ".venv" / "bin" / "python").lstat().st_mtime_ns
    (small_project / "impala_tf" / "a.py").write_text("A = 2\n")
    assert setup.run(extras=("worlds",)).startswith("node1: ready: 2 packages")
    assert (workdir / "impala_tf" / "a.py").read_text() == "A = 2\n"
    assert setup.version("toolz") == "1.0.0"
    assert (workdir / ".venv" / "bin" / "python").lstat().st_mtime_ns == python, "made again"
    (small_project / requirements.CONSTRAINTS).write_text("iniconfig==99.0\n")
    with pytest.raises(ClusterError, match="iniconfig"):
        setup.run()


def test_what_the_users_own_interpreter_lacks_is_reported(sshd, home, small_project, tmp_path):
    (small_project / requirements.CONSTRAINTS).write_text("iniconfig==0.0.1\n")
    made = Setup(sshd, small_project, tmp_path / "there", python=sys.executable)
    with pytest.raises(ClusterError, match=r"has iniconfig .* instead of 0.0.1; install the"):
        made.run()
    made.runner.close()


def test_pip_installs_what_uv_does_not_find(home, small_project, tmp_path):
    """Only pip knows the indexes and links of pip's own configuration."""
    with zipfile.ZipFile(tmp_path / "lonely-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("lonely.py", "")
        for name, text in {
            "METADATA": "Metadata-Version: 2.1\nName: lonely\nVersion: 1.0\n",
            "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            "RECORD": "",
        }.items():
            wheel.writestr(f"lonely-1.0.dist-info/{name}", text)
    toml = small_project / "pyproject.toml"
    toml.write_text(toml.read_text().replace("iniconfig", "lonely"))
    (small_project / requirements.CONSTRAINTS).write_text("lonely==1.0\n")
    (tmp_path / "pip.conf").write_text(f"[global]\nno-index = true\nfind-links = {tmp_path}\n")
    variables = f"PIP_CONFIG_FILE={tmp_path}/pip.conf UV_OFFLINE=1"
    with running_sshd(tmp_path / "sshd", environment=variables) as configured:
        made = Setup(configured, small_project, tmp_path / "there")
        assert "ready: " in made.run()
        assert made.version("lonely") == "1.0"
        made.runner.close()


@pytest.mark.parametrize(("line", "is_right"), [("", False), ("built_for = 'this'", True)])
def test_a_horovod_without_the_patch_counts_as_wrong(setup, tmp_path, line, is_right):
    """Its version is the pinned one, so `setup` left it as it was, and learners hung."""
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    (site,) = venv.glob("lib/*/site-packages")
    (site / "horovod").mkdir()
    (site / "horovod" / "__init__.py").write_text(line)
    (site / "horovod-0.28.1.dist-info").mkdir()
    (site / "horovod-0.28.1.dist-info" / "METADATA").write_text("Name: horovod\nVersion: 0.28.1\n")
    python = str(venv / "bin" / "python")
    here = LocalRunner(setup.runner.node._replace(workdir=str(tmp_path), python=python))
    wrong = look(here, {"horovod": "0.28.1"})["wrong"]
    assert wrong == ([] if is_right else ["horovod without the patch of install_horovod.sh"])


def test_processes_here_find_the_users_modules_where_the_command_does(setup, tmp_path, monkeypatch):
    """They run in the project's folder, and get no PYTHONPATH."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", "/mine:ours")
    here = LocalRunner(setup.runner.node._replace(workdir="/"))
    told = here.run(["printenv", "IMPALA_TF_MODULES"]).text.strip()
    assert told == f"{tmp_path}:/mine:{tmp_path}/ours"
