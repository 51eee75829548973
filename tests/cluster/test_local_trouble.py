"""What fails on the launching machine itself is said in one line, not in a traceback."""

import gzip
import subprocess
import sys

import pytest

from impala_tf.cluster import code
from impala_tf.cluster.cluster_main import main
from impala_tf.cluster.engines import ssh
from impala_tf.cluster.launch import new_record
from impala_tf.cluster.node.state import supervisor_log
from impala_tf.cluster.plan import plan_of
from impala_tf.cluster.record import save
from impala_tf.cluster.runner import ClusterError
from impala_tf.config import Given
from tests.helpers.runs import PROJECT

ROWS = "job,ip,tf_port\nlearner,10.0.0.1,8001\nactor,10.0.0.2,\n"


@pytest.fixture
def recorded(tmp_path):
    """The logdir of a run on two other machines, which are not asked."""
    csv = tmp_path / "w.csv"
    csv.write_text(ROWS)
    given = Given({"workers_csv_path": str(csv), "logdir": str(tmp_path)})
    save(new_record(plan_of(given, sys.executable)[0], given), tmp_path)
    (tmp_path / code.NAME).write_bytes(gzip.compress(b""))
    return tmp_path


def test_a_launch_names_the_file_that_it_cannot_write(run):
    (run.logdir / "code.tar.gz").mkdir(parents=True)
    given = Given({"workers_csv_path": str(run.csv), "logdir": str(run.logdir)})
    with pytest.raises(ClusterError) as caught:
        ssh.submit(given, lambda status: pytest.fail("started"), lambda run, logdir: [])
    assert str(caught.value) == f"{run.logdir}/code.tar.gz: Is a directory"


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


def test_an_installation_without_paramiko_has_all_that_needs_no_ssh(tmp_path):
    """It is in the extra learner: on an actor's machine, completion ended with a traceback."""
    csv = tmp_path / "w.csv"
    csv.write_text("job,ip,tf_port\nlearner,10.0.0.1,8001\nactor,10.0.0.2,\n")
    program = (
        "import sys; sys.modules['paramiko'] = None; from impala_tf.cluster import cluster_main;"
        " sys.exit(cluster_main.main(sys.argv[1:]))"
    )
    words = ["doctor", f"--workers_csv_path={csv}"]
    done = subprocess.run(
        [sys.executable, "-c", program, *words], cwd=PROJECT, capture_output=True, text=True
    )
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("SSH needs paramiko, of the extra learner: ")


def test_code_that_was_changed_in_the_logdir_reaches_no_machine(recorded, capsys):
    (recorded / "w.csv").write_text(f"{ROWS}actor,10.0.0.3,\n")
    (recorded / "code.tar.gz").write_bytes(b"another program")
    assert main(["add", f"--logdir={recorded}"]) == 2
    assert capsys.readouterr().err.startswith(f"{recorded}/code.tar.gz: is not the code that was")
