"""What fails on the launching machine itself is said in one line, not in a traceback."""

import gzip
import shutil
import subprocess
import sys

import pytest

from impala_tf.config import ConfigError, Given
from impala_tf.frontend import snapshot
from impala_tf.frontend.engines import ssh
from impala_tf.frontend.engines.engine import Hooks
from impala_tf.frontend.errors import ClusterError
from impala_tf.frontend.launcher import new_record, plan_of
from impala_tf.frontend.main import main
from impala_tf.frontend.node.state import supervisor_log
from impala_tf.frontend.plan import NodeSpec
from impala_tf.frontend.record import save
from impala_tf.frontend.ssh_login import SshConnector
from impala_tf.machine import certificates
from tests.helpers.runs import PROJECT

NODE = NodeSpec("node1", "node-0", "h", False, "w", "python", "logs", "h")
ROWS = "job,ip,tf_port\nlearner,10.0.0.1,8001\nactor,10.0.0.2,\n"


@pytest.fixture
def recorded(tmp_path):
    """The logdir of a run on two other machines, which are not asked."""
    csv = tmp_path / "w.csv"
    csv.write_text(ROWS)
    given = Given({"workers_csv_path": str(csv), "logdir": str(tmp_path)})
    save(new_record(plan_of(given, sys.executable)[0], given), tmp_path)
    snapshot.save(snapshot.Snapshot(gzip.compress(b""), ""), tmp_path)
    return tmp_path


@pytest.mark.slow
def test_a_launch_names_the_file_that_it_cannot_write(run):
    (run.logdir / "code.tar.gz").mkdir(parents=True)
    given = Given({"workers_csv_path": str(run.csv), "logdir": str(run.logdir)})
    with pytest.raises(ConfigError) as caught:
        ssh.submit(given, Hooks(lambda status: pytest.fail("started"), lambda run, logdir: []))
    assert str(caught.value) == f"{run.logdir}/code.tar.gz: Is a directory"


def test_add_names_the_file_that_it_cannot_write(recorded, capsys):
    (recorded / "w.csv").write_text(f"{ROWS}actor,10.0.0.3,\n")
    (recorded / "code.tar.gz").unlink()
    (recorded / "code.tar.gz").mkdir()
    assert main(["add", f"--logdir={recorded}"]) == 2
    assert capsys.readouterr().err == f"{recorded}/code.tar.gz: Is a directory\n"


def test_ctrl_c_in_add_says_how_to_start_the_actors(recorded, capsys, monkeypatch):
    """The next `add` said that there are no new rows."""

    def interrupted(*_):
        raise KeyboardInterrupt

    (recorded / "w.csv").write_text(f"{ROWS}actor,localhost,\n")
    with monkeypatch.context() as patched:
        patched.setattr("impala_tf.frontend.parallel.Machines.connect", interrupted)
        assert main(["add", f"--logdir={recorded}"]) == 130
    assert capsys.readouterr().err == "", "nothing is added before the machines are reached"
    monkeypatch.setattr("impala_tf.frontend.added_rows.look", interrupted)
    assert main(["add", f"--logdir={recorded}"]) == 130
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("in the run now: actor-1; ")
    assert line.endswith(f"restart --logdir={recorded} HOST starts those of a machine")


def test_a_machine_is_not_said_to_be_revoked_if_that_cannot_be_written(tmp_path):
    folder = tmp_path / "credentials"
    certificates.create(folder, keep_authority=True)
    certificates.of_machine(folder, "node1")
    (folder / certificates.REVOKED).mkdir()
    with pytest.raises(ConfigError, match="revoked: Is a directory, so node1 is not revoked"):
        certificates.revoke(folder, "node1")


@pytest.mark.slow
def test_output_that_nobody_reads_any_more_ends_a_command_quietly(tmp_path):
    """As `logs actor-0 -f | grep -m1 ...`."""
    csv, log = tmp_path / "w.csv", supervisor_log(tmp_path, "node-here")
    csv.write_text("job,ip,tf_port\nlearner,localhost,8001\nactor,localhost,\n")
    given = Given({"workers_csv_path": str(csv), "logdir": str(tmp_path)})
    save(new_record(plan_of(given, sys.executable)[0], given), tmp_path)
    log.parent.mkdir()
    log.write_text("first\n")
    command = [sys.executable, "-m", "frontend", "logs", "-f", "supervisor", f"--logdir={tmp_path}"]
    text = 'while sleep 1; do echo more; done >>"$0" & "$@" | head -n 1; echo "${PIPESTATUS[0]}"'
    shell = ["bash", "-c", f"{text}; kill %1", str(log)]
    done = subprocess.run([*shell, *command], cwd=PROJECT, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("first\n141\n", "")


def test_attach_says_that_it_needs_ssh(recorded, capsys, monkeypatch):
    monkeypatch.setenv("PATH", str(recorded))
    assert shutil.which("ssh") is None
    assert main(["attach", "10.0.0.2", f"--logdir={recorded}"]) == 2
    assert capsys.readouterr().err == "attach: needs the command ssh, and there is none here\n"


@pytest.mark.usefixtures("home")
def test_a_slow_ssh_configuration_is_named(monkeypatch):
    """Match exec runs a command of the user's, which may wait for the network."""

    def run(command, timeout, **settings):
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(ClusterError, match="node1: ~/.ssh/config: ssh -G h takes longer than 30 s"):
        SshConnector({}, False).connect(NODE)
