"""`frontend setup`: copies the project and installs its packages, behind a real sshd."""

import contextlib
import importlib.metadata
import io
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from rich.console import Console

from impala_tf.frontend import packages, project, ssh_login
from impala_tf.frontend.bootstrap import SetupOptions
from impala_tf.frontend.connection import LocalRunner
from impala_tf.frontend.errors import ClusterError
from impala_tf.frontend.node.state import ProcessSpec
from impala_tf.frontend.plan import Plan
from impala_tf.frontend.setup import set_up
from impala_tf.frontend.wheelhouse import Kind, Wheelhouse
from tests.helpers.disks import fill, mounted
from tests.helpers.machine_setup import Setup
from tests.helpers.waiting import wait_until

pytestmark = pytest.mark.slow


NOBODY = "http://127.0.0.1:9/"
"""An index that cannot be reached."""


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


def wheels_of(folder):
    return sorted(path.name for path in (folder / ".wheels").iterdir())


def test_packages_can_come_from_here_instead_of_an_index(setup, tmp_path, monkeypatch, sshd):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(packages, "index_settings", lambda runner: [f"UV_DEFAULT_INDEX={NOBODY}"])
    assert setup.run(wheelhouse=True)
    assert setup.version("iniconfig") == "2.1.0"
    folder = tmp_path / "there; $(touch x)"
    (wheel,) = wheels_of(folder)
    assert wheel.startswith("iniconfig-2.1.0")
    # After an interruption, a file is there, but not all of it.
    size = (folder / ".wheels" / wheel).stat().st_size
    (folder / ".wheels" / wheel).write_bytes(b"PK")
    setup.runner.run(["rm", "-rf", ".venv"])
    assert setup.run(wheelhouse=True)
    assert (folder / ".wheels" / wheel).stat().st_size == size


def test_a_machine_is_sent_only_what_its_role_needs(sshd, small_project, tmp_path, monkeypatch):
    """Machines that only have actors were sent TensorFlow."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    toml = small_project / "pyproject.toml"
    toml.write_text(toml.read_text().replace("learner=[]", 'learner=["toolz"]'))
    home_with(tmp_path / "home", sshd)
    nodes = [machine(sshd, job, tmp_path / job) for job in ("actor", "learner")]
    status, said = set_up_all(nodes, small_project, wheelhouse=True)
    assert status == 0, said
    assert [name.split("-")[0] for name in wheels_of(tmp_path / "actor")] == ["iniconfig"]
    assert [name.split("-")[0] for name in wheels_of(tmp_path / "learner")] == [
        "iniconfig", "toolz",
    ]  # fmt: skip


def machine(sshd, name, workdir, python=".venv/bin/python", **changes):
    """Returns a machine with the process that its name begins with."""
    return sshd.node(workdir=str(workdir), python=python, **changes)._replace(name=name)


def set_up_all(nodes, root, output=None, **options):
    """Sets up machines; returns the exit status and what was printed."""
    output = output or io.StringIO()
    names = [f"{node.name.split('-')[0]}-{number}" for number, node in enumerate(nodes)]
    processes = [ProcessSpec(n, node.name, ()) for n, node in zip(names, nodes, strict=True)]
    plan = Plan("impala", tuple(nodes), tuple(processes), ())
    console = Console(file=output, width=200)
    status = set_up(plan, {}, False, console, SetupOptions(**options), root=root)
    return status, output.getvalue()


def test_machines_with_one_folder_set_it_up_one_after_another(
    sshd, small_project, tmp_path, monkeypatch
):
    """The home folders of a cluster are often on one file server."""
    home_with(tmp_path / "home", sshd)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    toml = small_project / "pyproject.toml"
    toml.write_text(toml.read_text().replace("learner=[]", 'learner=["toolz"]'))
    folder = tmp_path / "shared"
    names = ("actor-a", "actor-b", "learner-c", "actor-d")
    nodes = [machine(sshd, name, folder) for name in names]
    status, said = set_up_all(nodes, small_project)
    assert status == 0, said
    assert said.count("ready: 0 files copied") == 3, said
    assert sorted(path.name for path in folder.iterdir() if path.name.startswith(".")) == [
        ".uv", ".venv",
    ]  # fmt: skip
    installed = [path.name for path in folder.glob(".venv/lib/*/site-packages/*.dist-info")]
    assert sorted(installed) == ["iniconfig-2.1.0.dist-info", "toolz-1.0.0.dist-info"]


def test_a_folder_that_one_machine_cannot_set_up_is_not_tried_by_the_others(
    sshd, small_project, tmp_path, monkeypatch
):
    home_with(tmp_path / "home", sshd)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (small_project / project.CONSTRAINTS).write_text("iniconfig==0.0.1\n")
    names = ("actor-a", "actor-b", "actor-c")
    nodes = [machine(sshd, name, tmp_path / "shared", sys.executable) for name in names]
    status, said = set_up_all(nodes, small_project)
    assert status == 1
    assert said.count("instead of 0.0.1; install the versions") == 1, said
    assert said.count(", which has the same folder, failed") == 2, said
    assert said.splitlines()[-1] == "0 of 3 machine(s) ready; not actor-a, actor-b, actor-c"


def test_a_machine_that_does_not_answer_holds_up_no_other(
    sshd, small_project, tmp_path, monkeypatch
):
    """All waited for the slowest at the login, and three more times."""
    home_with(tmp_path / "home", sshd)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    version = importlib.metadata.version("iniconfig")
    (small_project / project.CONSTRAINTS).write_text(f"iniconfig=={version}\n")
    output, statuses = io.StringIO(), []
    # The silent one must not be given up before the other one is ready.
    monkeypatch.setattr(ssh_login, "CONNECT_TIMEOUT_S", 120.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        nodes = [machine(sshd, "actor-a", tmp_path / "a", sys.executable),
                 machine(sshd, "actor-b", "b", ssh_port=silent.getsockname()[1])]  # fmt: skip
        thread = threading.Thread(
            target=lambda: statuses.append(set_up_all(nodes, small_project, output)[0])
        )
        thread.start()
        accepted, _ = silent.accept()
        with accepted:
            wait_until(lambda: "actor-a: ready" in output.getvalue())
            assert "actor-b" not in output.getvalue()
        thread.join(20)
    assert statuses == [1]
    assert output.getvalue().splitlines()[-1] == "1 of 2 machine(s) ready; not actor-b"


def home_with(home, sshd):
    known = home / ".ssh" / "known_hosts"
    known.parent.mkdir(parents=True)
    known.write_text(sshd.known_hosts.read_text())


def test_wheels_fit_the_machines_python_not_the_launchers(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "impala_tf").mkdir()
    (tmp_path / project.CONSTRAINTS).write_text("MarkupSafe==3.0.2\n")
    house = Wheelhouse(tmp_path)
    for python in ("3.11", "3.12"):
        (wheel,) = house.folder(Kind(("MarkupSafe",), False, python)).iterdir()
        assert f"-cp{python.replace('.', '')}-" in wheel.name
    (tmp_path / project.CONSTRAINTS).write_text("envpool==0.0.1\n")
    other = "3.12" if sys.version_info[:2] == (3, 11) else "3.11"
    with pytest.raises(ClusterError, match=f"the machine has Python {other}, this one 3"):
        house.folder(Kind(("envpool",), False, other))


def peak_mib():
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def test_sending_uv_to_many_machines_takes_little_time_and_memory(sshd, small_project, tmp_path):
    """It took 5 s of processor time and 110 MiB a machine. It has about 40 MB."""
    machines = [Setup(sshd, small_project, tmp_path / f"w{k}") for k in range(3)]
    for each in machines:
        each.runner.run(["mkdir", "-p", "--", each.runner.node.workdir], in_workdir=False)
    installer = machines[0].installer()
    Path("/proc/self/clear_refs").write_text("5")  # the peak of earlier tests, see proc(5)
    before, started_s = peak_mib(), time.process_time()
    threads = [threading.Thread(target=installer.copy_uv, args=(each.runner,)) for each in machines]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took_s, more_mib = time.process_time() - started_s, peak_mib() - before
    digests = {each.runner.run(["sha256sum", ".uv/uv"]).text.split()[0] for each in machines}
    assert len(digests) == 1
    assert took_s / len(machines) < 2.0
    assert more_mib / len(machines) < 20.0
    written = machines[0].runner.run(["stat", "-c", "%i", ".uv/uv"]).text
    installer.copy_uv(machines[0].runner)
    assert machines[0].runner.run(["stat", "-c", "%i", ".uv/uv"]).text == written, "it went twice"
    for each in machines:
        each.runner.close()


def test_why_a_machine_does_not_take_a_large_file_is_said(setup):
    setup.runner.run(["mkdir", "-p", "--", setup.runner.node.workdir], in_workdir=False)
    setup.runner.run(["touch", ".uv"])
    with pytest.raises(ClusterError, match=r"node1: uv: mkdir: .*\.uv"):
        setup.run()


@pytest.mark.faults
def test_a_full_disk_is_one_line(setup, small_project, tmp_path):
    for number in range(9):
        (small_project / "impala_tf" / f"large{number}.py").write_text("#" * 10_000)
    with mounted(tmp_path / "there; $(touch x)") as disk:
        fill(disk)
        with pytest.raises(ClusterError, match=r"^node1: tar: .*No space left on device$") as error:
            setup.run()
    assert "\n" not in str(error.value)


def test_what_the_users_own_interpreter_lacks_is_reported(sshd, tmp_path):
    (tmp_path / "pyproject.toml").write_text('[project]\nname="x"\ndependencies=["iniconfig"]\n')
    (tmp_path / "impala_tf").mkdir()
    (tmp_path / project.CONSTRAINTS).write_text("iniconfig==0.0.1\n")
    made = Setup(sshd, tmp_path, tmp_path / "there", python=sys.executable)
    try:
        with pytest.raises(ClusterError, match=r"has iniconfig .* instead of 0.0.1; install the"):
            made.run()
    finally:
        made.runner.close()


def test_a_package_that_does_not_exist_is_named(setup, small_project):
    (small_project / project.CONSTRAINTS).write_text("iniconfig==99.0\n")
    with pytest.raises(ClusterError, match="iniconfig"):
        setup.run()


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
    found = packages.wrong(here, {"horovod": "0.28.1"})
    assert found == ([] if is_right else ["horovod 0.28.1 without the patch of install_horovod.sh"])


def test_processes_here_find_the_users_modules_where_the_command_does(setup, tmp_path, monkeypatch):
    """They run in the project's folder, and get no PYTHONPATH."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", "/mine:ours")
    here = LocalRunner(setup.runner.node._replace(workdir="/"))
    told = here.run(["printenv", "IMPALA_TF_MODULES"]).text.strip()
    assert told == f"{tmp_path}:/mine:{tmp_path}/ours"


def test_an_interrupted_setup_leaves_nothing_running(setup, monkeypatch):
    """Ctrl-C left pip running on the machines."""
    setup.runner.run(["mkdir", "-p", "--", setup.runner.node.workdir], in_workdir=False)
    installer = setup.installer()
    failures = []

    def install():
        try:
            installer.set_up(setup.runner, lambda share, text: None)
        except ClusterError as error:
            failures.append(str(error))

    with socket.create_server(("127.0.0.1", 0)) as index:  # one that never answers
        address = f"http://user:hidden@127.0.0.1:{index.getsockname()[1]}/"
        settings = [f"UV_DEFAULT_INDEX={address}"]
        monkeypatch.setattr(packages, "index_settings", lambda runner: settings)
        thread = threading.Thread(target=install)
        thread.start()
        index.settimeout(120)
        asked, _ = index.accept()
        with asked:
            assert asked.recv(1000).startswith(b"GET /iniconfig/")
            commands = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
            assert "pip install" in commands
            assert "hidden@" not in commands, "everybody on the machine can read the password"
            installer.cancel()
            thread.join(20)
            assert failures == ["node1: interrupted"]
            asked.settimeout(20)
            with contextlib.suppress(ConnectionError):
                assert asked.recv(1000) == b"", "uv still waits for the index"
    with pytest.raises(ClusterError, match="interrupted"):
        installer.set_up(setup.runner, lambda share, text: None)
