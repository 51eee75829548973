"""Machines over SSH, with a real sshd: host keys, logins, commands, files and setup."""

import json
import logging
import shlex
import socket
import subprocess
import sys

import pytest

from frontend import ssh
from frontend.errors import ClusterError
from frontend.machine import in_workdir
from frontend.setup import set_up_machine
from frontend.tmux import Session
from frontend.workers import Secret
from tests.helpers.hostile import HOSTILE, KEEP_ARGUMENTS
from tests.helpers.sshd import fingerprint, make_key, public_key
from tests.helpers.waiting import wait_until

PASSWORD = Secret("canary-7c1f")


def connect(sshd, accept=False, password=None, known_hosts=None, **changes):
    return ssh.connect(sshd.place(**changes), password, accept, known_hosts or sshd.known_hosts)


@pytest.fixture
def machine(sshd):
    found = connect(sshd)
    yield found
    found.close()


def refusal(sshd, **arguments):
    with pytest.raises(ClusterError) as caught:
        connect(sshd, **arguments)
    return str(caught.value)


def test_arguments_of_a_command_arrive_byte_for_byte(machine, tmp_path):
    done = machine.run([
        sys.executable, "-c", "import json, sys; print(json.dumps(sys.argv[1:]))", *HOSTILE
    ])  # fmt: skip
    assert json.loads(done.stdout) == HOSTILE
    assert done.status == 0


def test_a_command_has_status_input_and_both_outputs(machine):
    done = machine.run(["sh", "-c", "cat; echo bad >&2; exit 5"], stdin="héllo")
    assert (done.status, done.stdout, done.stderr, done.last_line) == (5, "héllo", "bad\n", "bad")
    assert machine.run(["/no/such/program"]).status == 127


def test_output_larger_than_the_ssh_window_does_not_block(machine):
    script = "import sys; [s.write('x' * 5_000_000) for s in (sys.stderr, sys.stdout)]"
    done = machine.run([sys.executable, "-c", script])
    assert len(done.stdout) == len(done.stderr) == 5_000_000


def test_a_command_that_hangs_times_out(machine):
    with pytest.raises(ClusterError, match="node1: no answer in time"):
        machine.run(["sleep", "1000"], timeout_s=0.2)


def test_a_started_command_sees_the_end_of_its_input(machine):
    running = machine.start(["sh", "-c", "echo ready; cat; echo bye >&2; exit 4"])
    assert next(running.lines()) == "ready\n"
    assert running.finish() == 4


def test_written_files_are_complete_and_private(machine, tmp_path):
    path = tmp_path / "new folder; $(x)" / "key"
    machine.write(str(path), b"one\x00two")
    machine.write(str(path), b"three\x00four")
    assert path.read_bytes() == b"three\x00four"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert [p.name for p in path.parent.iterdir()] == ["key"]
    assert machine.read(str(path), 6) == b"four"
    with pytest.raises(FileNotFoundError):
        machine.read(str(tmp_path / "none"))


def test_a_tmux_window_outlives_the_connection(sshd, tmp_path):
    first = connect(sshd)
    command = [sys.executable, "-c", KEEP_ARGUMENTS, *HOSTILE]
    Session(first, "impala").open("actor-0", ["env", "-C", str(tmp_path), *command], "run")
    arrived = tmp_path / "arguments.json"
    wait_until(arrived.exists)
    first.close()
    second = connect(sshd)
    try:
        windows = Session(second, "impala").windows()
        assert windows is not None
        assert [(w.name, w.dead, w.pid) for w in windows] == [
            ("actor-0", False, json.loads(arrived.read_text())[1])]  # fmt: skip
        assert json.loads(arrived.read_text())[0] == HOSTILE
        Session(second, "impala").close("run")
        assert Session(second, "impala").windows() is None
    finally:
        second.close()


def test_an_unknown_host_key_is_refused_with_its_fingerprint(sshd, tmp_path):
    text = refusal(sshd, known_hosts=tmp_path / "none")
    assert f"unknown host key ssh-ed25519 {fingerprint(sshd.host_key)}" in text
    assert not (tmp_path / "none").exists()


def test_an_unknown_host_key_is_remembered_if_the_user_says_so(sshd, tmp_path):
    known = tmp_path / "ssh" / "known_hosts"
    connect(sshd, accept=True, known_hosts=known).close()
    assert known.read_text() == f"[127.0.0.1]:{sshd.port} {public_key(sshd.host_key)}\n"
    assert known.stat().st_mode & 0o777 == 0o600
    connect(sshd, known_hosts=known).close()


@pytest.mark.parametrize("accept", [False, True])
def test_a_changed_host_key_is_always_refused(sshd, tmp_path, accept):
    other, known = make_key(tmp_path / "other"), tmp_path / "known_hosts"
    known.write_text(f"[127.0.0.1]:{sshd.port} {public_key(other)}\n")
    text = refusal(sshd, accept=accept, known_hosts=known)
    assert "the host key has CHANGED" in text
    assert fingerprint(other) in text and fingerprint(sshd.host_key) in text
    assert public_key(sshd.host_key) not in known.read_text()


def test_a_host_key_of_another_type_counts_as_changed(sshd, tmp_path):
    other, known = tmp_path / "rsa", tmp_path / "known_hosts"
    subprocess.run(["ssh-keygen", "-q", "-t", "rsa", "-N", "", "-f", str(other)], check=True)
    known.write_text(f"[127.0.0.1]:{sshd.port} {public_key(other)}\n")
    assert "CHANGED" in refusal(sshd, accept=True, known_hosts=known)


def test_a_wrong_password_is_refused_and_never_shown(sshd, caplog, capfd, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))  # without keys
    caplog.set_level(logging.DEBUG)
    with pytest.raises(ClusterError) as caught:
        connect(sshd, password=PASSWORD, key_filename=None)
    text = str(caught.value)
    assert "node1: login of root refused; tried your keys and the CSV's password" in text
    shown = f"{text} {caplog.text} {capfd.readouterr()} {caught.getrepr(showlocals=False)}"
    processes = subprocess.check_output(["ps", "axeww"], text=True)
    assert PASSWORD.reveal() not in shown + processes + (sshd.folder / "sshd.log").read_text()


def test_keys_are_tried_before_the_password(sshd):
    connect(sshd, password=PASSWORD).close()


def test_a_login_without_key_and_password_is_refused(sshd, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert "node1: login of root refused; tried your keys (" in refusal(sshd, key_filename=None)


def test_a_missing_key_file_is_named(sshd):
    assert "key_filename /none: no such file" in refusal(sshd, key_filename="/none")


def test_a_machine_where_nothing_listens_is_named(sshd):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        assert f"node1: nothing answers SSH at 127.0.0.1:{port}" in refusal(sshd, ssh_port=port)


def test_a_lost_connection_is_a_cluster_error(sshd):
    machine = connect(sshd)
    machine.close()
    with pytest.raises(ClusterError, match="node1: "):
        machine.run(["true"])


def test_setup_copies_the_project_and_installs_its_packages(sshd, tmp_path):
    project = tmp_path / "project"
    (project / "impala_tf").mkdir(parents=True)
    (project / "impala_tf" / "a.py").write_text("A = 1\n")
    (project / "pyproject.toml").write_text('[project]\nname="x"\ndependencies=["iniconfig"]\n')
    (project / "constraints.txt").write_text("iniconfig==2.1.0\nnumpy==2.0.2\n")
    workdir = tmp_path / "there; $(touch x)"
    machine = connect(sshd, workdir=str(workdir), python=".venv/bin/python")
    try:
        said = []

        def report(share, what):
            said.append(what)

        text = set_up_machine(machine, project, "actor", False, report)
        assert text.startswith("ready: 3 files copied, 1 packages as pinned")
        assert (workdir / "impala_tf" / "a.py").read_text() == "A = 1\n"
        listed = machine.run(in_workdir(machine.place, [
            ".venv/bin/python", "-c", "import iniconfig; print(iniconfig.__file__)"
        ]))  # fmt: skip
        assert shlex.quote(str(workdir)) != str(workdir)
        assert listed.stdout.startswith(str(workdir / ".venv"))
        assert any(line.startswith("Successfully installed iniconfig-2.1.0") for line in said)
        (project / "impala_tf" / "a.py").write_text("A = 2\n")
        again = set_up_machine(machine, project, "actor", False, report)
        assert again.startswith("ready: 1 files copied"), (
            "a file that had not changed was copied again"
        )
    finally:
        machine.close()


def test_setup_reports_what_the_users_interpreter_lacks(sshd, tmp_path):
    (tmp_path / "pyproject.toml").write_text('[project]\nname="x"\ndependencies=["iniconfig"]\n')
    (tmp_path / "constraints.txt").write_text("iniconfig==0.0.1\n")
    machine = connect(sshd, workdir=str(tmp_path / "there"))
    try:
        with pytest.raises(
            ClusterError, match="has iniconfig .* instead of 0.0.1; install the versions"
        ):
            set_up_machine(machine, tmp_path, "actor", False, lambda share, what: None)
    finally:
        machine.close()
