"""What fails on the launching machine itself is said in one line, not in a traceback."""

import subprocess
import sys

from impala_tf.cluster.cluster_main import main
from impala_tf.cluster.launch import new_record
from impala_tf.cluster.node.state import supervisor_log
from impala_tf.cluster.plan import plan_of
from impala_tf.cluster.record import save
from impala_tf.config import Given
from tests.helpers.runs import PROJECT

ROWS = "job,ip,tf_port\nlearner,10.0.0.1,8001\nactor,10.0.0.2,\n"


def record(csv, logdir):
    """Records a launch, of which no process runs, with the rows of a CSV."""
    given = Given({"workers_csv_path": str(csv), "logdir": str(logdir)})
    save(new_record(plan_of(given, sys.executable)[0], given), logdir)


def test_output_that_nobody_reads_any_more_ends_a_command_quietly(tmp_path):
    """As `logs actor-0 -f | grep -m1 ...`."""
    csv, log = tmp_path / "w.csv", supervisor_log(tmp_path, "node-here")
    csv.write_text("job,ip,tf_port\nlearner,localhost,8001\nactor,localhost,\n")
    record(csv, tmp_path)
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
    csv.write_text(ROWS)
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


def test_code_that_was_changed_in_the_logdir_reaches_no_machine(tmp_path, capsys):
    (tmp_path / "w.csv").write_text(ROWS)
    record(tmp_path / "w.csv", tmp_path)
    (tmp_path / "w.csv").write_text(f"{ROWS}actor,10.0.0.3,\n")
    (tmp_path / "code.tar.gz").write_bytes(b"another program")
    assert main(["add", f"--logdir={tmp_path}"]) == 2
    assert capsys.readouterr().err.startswith(f"{tmp_path}/code.tar.gz: is not the code that was")
