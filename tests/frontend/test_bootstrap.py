"""`frontend setup`: copies the project and installs its packages, behind a real sshd."""

import threading
import time

import pytest

from frontend import bootstrap, project
from frontend.bootstrap import SetupOptions
from frontend.errors import ClusterError
from frontend.node.state import ProcessSpec
from frontend.plan import Plan
from frontend.ssh import SshRunner
from frontend.ssh_login import SshConnector
from tests.helpers.waiting import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def small_project(tmp_path):
    """A project with one small package."""
    folder = tmp_path / "project"
    (folder / "impala_tf").mkdir(parents=True)
    (folder / "impala_tf" / "a.py").write_text("A = 1\n")
    (folder / "pyproject.toml").write_text(
        '[project]\nname="x"\ndependencies=["iniconfig"]\n'
        '[project.optional-dependencies]\nlearner=[]\nworlds=["toolz"]\n'
    )
    (folder / "constraints.txt").write_text("iniconfig==2.1.0\ntoolz==1.0.0\n")
    return folder


class Setup:
    """A machine to set up."""

    def __init__(self, sshd, root, workdir, python=".venv/bin/python"):
        self.root = root
        node = sshd.node(workdir=str(workdir), python=python)
        self.runner = SshRunner(node, SshConnector({}, False, sshd.known_hosts))
        self.plan = Plan("impala", (node,), (ProcessSpec("actor-0", node.name, ()),), ())
        self.said = []

    def installer(self, **options):
        files = project.files("", self.root)
        return bootstrap._Installer(self.plan, files, self.root, SetupOptions(**options))

    def run(self, **options):
        self.runner.run(["mkdir", "-p", "--", self.runner.node.workdir], in_workdir=False)
        return self.installer(**options).set_up(
            self.runner, lambda share, text: self.said.append(text)
        )

    def version(self, package):
        code = f"import importlib.metadata as m; print(m.version('{package}'))"
        return self.runner.run([".venv/bin/python", "-c", code]).text.strip()


@pytest.fixture
def setup(sshd, small_project, tmp_path):
    made = Setup(sshd, small_project, tmp_path / "there; $(touch x)")
    yield made
    made.runner.close()


def test_the_project_is_copied_and_its_packages_are_installed(setup, small_project, tmp_path):
    workdir = tmp_path / "there; $(touch x)"
    assert setup.run().startswith("ready: 3 files copied, 1 packages as pinned")
    assert (workdir / "impala_tf" / "a.py").read_text() == "A = 1\n"
    assert setup.version("iniconfig") == "2.1.0"
    (small_project / "impala_tf" / "a.py").write_text("A = 2\n")
    setup.said.clear()
    assert setup.run(extras=("worlds",)).startswith("ready: 1 files copied, 2 packages"), (
        "a file that had not changed was copied again"
    )
    assert setup.version("toolz") == "1.0.0"
    assert "creating a virtual environment" not in setup.said


def test_packages_can_come_from_here_instead_of_an_index(setup, tmp_path, monkeypatch, sshd):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    from rich.console import Console

    installer = setup.installer(wheelhouse=True)
    installer.collect_wheels(Console(quiet=True))
    monkeypatch.setattr(bootstrap.packages, "_PIP_TO_UV", {})
    setup.runner.run(["mkdir", "-p", "--", setup.runner.node.workdir], in_workdir=False)
    assert installer.set_up(setup.runner, lambda share, text: setup.said.append(text))
    assert setup.version("iniconfig") == "2.1.0"
    wheels = [path.name for path in (tmp_path / "there; $(touch x)" / ".wheels").iterdir()]
    assert any(name.startswith("iniconfig-2.1.0") for name in wheels)


def test_what_the_users_own_interpreter_lacks_is_reported(sshd, tmp_path):
    (tmp_path / "pyproject.toml").write_text('[project]\nname="x"\ndependencies=["iniconfig"]\n')
    (tmp_path / "constraints.txt").write_text("iniconfig==0.0.1\n")
    import sys

    made = Setup(sshd, tmp_path, tmp_path / "there", python=sys.executable)
    try:
        with pytest.raises(ClusterError, match=r"has iniconfig .* instead of 0.0.1; install the"):
            made.run()
    finally:
        made.runner.close()


def test_a_package_that_does_not_exist_is_named(setup, small_project):
    (small_project / "constraints.txt").write_text("iniconfig==99.0\n")
    with pytest.raises(ClusterError, match="iniconfig"):
        setup.run()


def test_an_interrupted_setup_leaves_nothing_running(setup, tmp_path):
    """Ctrl-C left pip running on the machines."""
    setup.runner.run(["mkdir", "-p", "--", setup.runner.node.workdir], in_workdir=False)
    installer = setup.installer()
    failures = []

    def install():
        try:
            installer._watch(setup.runner, ["sh", "-c", "echo $$ > pid; sleep 1000"], print)
        except ClusterError as error:
            failures.append(str(error))

    thread = threading.Thread(target=install)
    thread.start()
    pid_file = tmp_path / "there; $(touch x)" / "pid"
    wait_until(lambda: pid_file.exists() and pid_file.read_text().strip())
    time.sleep(0.2)
    installer.cancel()
    thread.join(20)
    assert failures == ["node1: interrupted"]
    stat = f"/proc/{pid_file.read_text().strip()}"
    wait_until(lambda: setup.runner.run(["test", "-d", stat]).status != 0)
    with pytest.raises(ClusterError, match="interrupted"):
        installer._stream(setup.runner, ["true"])
