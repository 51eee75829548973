"""Work on many machines at once, behind a real sshd."""

import socket
import subprocess
import sys
import threading

from impala_tf.frontend import parallel, ssh_login
from impala_tf.frontend.errors import ClusterError
from impala_tf.frontend.parallel import connected
from tests.helpers.runs import PROJECT
from tests.helpers.waiting import wait_until


def test_machines_that_take_long_are_named_meanwhile(sshd, capfd, monkeypatch):
    """A launch said nothing until the slowest machine had answered."""
    monkeypatch.setattr(parallel, "_PATIENCE_S", 0.5)
    found, said = {}, []

    def connect(nodes):
        with connected(nodes, {}, known_hosts=sshd.known_hosts) as machines:
            found.update(machines.found)

    def slow_ones():
        said.extend(capfd.readouterr().err.splitlines())
        return "logging in: waiting for 1 of 2 machine(s): slow" in said

    monkeypatch.setattr(ssh_login, "CONNECT_TIMEOUT_S", 120.0)  # not before the test has looked
    with socket.create_server(("127.0.0.1", 0)) as silent:
        slow = sshd.node(ssh_port=silent.getsockname()[1])._replace(name="slow")
        thread = threading.Thread(target=connect, args=([sshd.node(), slow],))
        thread.start()
        accepted, _ = silent.accept()
        with accepted:
            wait_until(slow_ones)
        thread.join(20)
    assert isinstance(found["slow"], ClusterError)
    assert not isinstance(found["node1"], ClusterError)
    assert sum(line.endswith(": slow") for line in said) == 1, "it was repeated"


def test_an_installation_without_paramiko_has_all_that_needs_no_ssh(tmp_path):
    """It is in the extra learner: on an actor's machine, completion ended with a traceback."""
    csv = tmp_path / "w.csv"
    csv.write_text("job,ip,tf_port\nlearner,10.0.0.1,8001\nactor,10.0.0.2,\n")
    program = (
        "import sys; sys.modules['paramiko'] = None; from impala_tf.frontend import main;"
        " sys.exit(main.main(sys.argv[1:]))"
    )
    words = ["doctor", f"--workers_csv_path={csv}"]
    done = subprocess.run(
        [sys.executable, "-c", program, *words], cwd=PROJECT, capture_output=True, text=True
    )
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("SSH needs the package paramiko, of the extra learner: ")
