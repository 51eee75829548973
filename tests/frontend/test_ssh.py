"""Machines over SSH, with a real sshd: host keys, logins, commands, and connections that fail."""

import json
import logging
import os
import socket
import subprocess
import sys
import time

import paramiko
import pytest

from impala_tf.frontend.connection import Completed, until_input_ends
from impala_tf.frontend.errors import ClusterError
from impala_tf.frontend.inventory import Secret
from impala_tf.frontend.ssh import SshRunner
from impala_tf.frontend.ssh_login import SshConnector
from impala_tf.machine.supervision import start_ticks
from tests.helpers.hostile import HOSTILE
from tests.helpers.sshd import (
    connect,
    fingerprint,
    make_key,
    public_key,
    refusal,
    running_sshd,
)
from tests.helpers.waiting import wait_until

PASSWORD = Secret("canary-7c1f")


@pytest.fixture
def runner(sshd):
    found = connect(sshd)
    yield found
    found.close()


# --- commands ---


def test_arguments_of_a_command_arrive_byte_for_byte(runner):
    program = "import json, sys; print(json.dumps(sys.argv[1:]))"
    done = runner.run([sys.executable, "-c", program, *HOSTILE])
    assert json.loads(done.stdout) == HOSTILE
    assert done.status == 0


def test_a_command_has_status_input_and_both_outputs(runner, sshd):
    done = runner.run(["sh", "-c", "pwd; cat; echo bad >&2; exit 5"], "héllo".encode())
    assert (done.status, done.text) == (5, f"{sshd.folder}/work\nhéllo")
    assert (done.stderr, done.last_line) == (b"bad\n", "bad")
    assert runner.run(["/no/such/program"]).status == 127


@pytest.mark.parametrize(
    ("printed", "cause"),
    [
        (b"6d0b425d7077826f: 1: exec: /bin/pyton: not found\n", "exec: /bin/pyton: not found"),
        (b"tar: a: No space left on device\ntar: b: No such file\n", "tar: a: No space left"),
        (b"tar: a: Denied\ntar: Exiting with failure status due to previous errors\n", "tar: a: D"),
        (b"", "exit status 2"),
    ],
)
def test_the_line_of_a_failed_command_says_the_cause(printed, cause):
    assert Completed(2, b"", printed).last_line.startswith(cause)


def test_a_missing_project_folder_and_the_home_folder(sshd):
    there = connect(sshd, workdir=str(sshd.folder / "none"))
    assert there.run(["pwd"]).status == 125
    assert there.run(["pwd"], in_workdir=False).status == 0
    there.close()


def test_an_interpreter_in_the_home_folder_is_found(sshd, runner):
    """~/ works in the other columns, too."""
    home = runner.run(["sh", "-c", 'printf %s "$HOME"']).text
    relative = os.path.relpath(sys.executable, home)
    assert runner.run([f"~/{relative}", "-c", "print(6 * 7)"]).text == "42\n"


def test_output_larger_than_the_ssh_window_does_not_block(runner):
    script = "import sys; [s.write('x' * 5_000_000) for s in (sys.stderr, sys.stdout)]"
    done = runner.run([sys.executable, "-c", script])
    assert len(done.stdout) == len(done.stderr) == 5_000_000


def test_a_command_that_exits_before_it_has_read_its_input(runner):
    assert runner.run(["sh", "-c", "exit 3"], b"x" * 20_000_000).status == 3


def test_a_command_that_hangs_times_out(runner):
    with pytest.raises(ClusterError, match="node1: no answer within 0.2 s"):
        runner.run(["sleep", "1000"], timeout_s=0.2)
    assert runner.run(["echo", "again"]).text == "again\n", "it did not connect again"


def test_a_streamed_command_sees_the_end_of_its_input(runner):
    stream = runner.stream(["sh", "-c", "echo ready; cat; echo bye >&2; exit 4"])
    chunks = stream.chunks()
    assert next(chunks) == b"ready\n"
    stream.write(b"more")
    assert next(chunks) == b"more"
    assert stream.finish() == 4


@pytest.mark.parametrize("how", ["cancel", "finish", "lost"])
def test_a_long_command_ends_when_nobody_wants_it_any_more(runner, tmp_path, how):
    """Without a terminal, sshd leaves what it started running: an installation, for example."""
    script = "echo $$ > pid; sleep 1000 & echo up; wait"
    stream = runner.stream(until_input_ends(["sh", "-c", script]))
    assert next(stream.chunks()) == b"up\n"
    pid = int((tmp_path_of(runner) / "pid").read_text())
    {"cancel": stream.cancel, "finish": stream.finish, "lost": runner.close}[how]()
    wait_until(lambda: start_ticks(pid) is None, what="end of the command")


def tmp_path_of(runner):
    from pathlib import Path

    return Path(runner.node.workdir)


def test_a_login_shell_that_prints_disturbs_nothing(sshd, tmp_path):
    """Some .bashrc files do, and scp and sftp fail there."""
    greeting = 'ForceCommand echo Welcome!; sh -c "$SSH_ORIGINAL_COMMAND"'
    with running_sshd(tmp_path / "noisy", greeting) as noisy:
        runner = connect(noisy)
        assert runner.run(["echo", "one"]).text == "one\n"
        assert b"".join(runner.stream(["echo", "two"]).chunks()) == b"two\n"
        runner.close()


def test_a_login_shell_that_runs_no_commands_is_named(tmp_path):
    with running_sshd(tmp_path / "other", "ForceCommand echo not available; exit 1") as other:
        runner = connect(other)
        with pytest.raises(ClusterError, match=r"node1: its login shell .*: not available$"):
            runner.run(["true"])
        runner.close()


# --- connections that fail ---


def test_a_lost_connection_is_named_and_the_next_command_connects_again(sshd, runner):
    with pytest.raises(ClusterError, match="node1: "):
        runner.run(["sh", "-c", "kill -9 $PPID; sleep 30"])
    assert runner.run(["echo", "back"]).text == "back\n"


def test_a_machine_where_nothing_listens_is_named(sshd):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        text = refusal(sshd, ssh_port=port)
        assert text == f"node1: SSH at 127.0.0.1:{port}: Connection refused"


def test_a_machine_that_hangs_is_named(sshd, monkeypatch):
    monkeypatch.setattr("impala_tf.frontend.ssh_login.CONNECT_TIMEOUT_S", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        started = time.monotonic()
        assert f"SSH at 127.0.0.1:{port}" in refusal(sshd, ssh_port=port)
        assert time.monotonic() - started < 20


def test_a_name_that_no_machine_has_is_said_to_be_unknown(sshd, home, monkeypatch):
    def look_up(host, *_, **settings):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    text = refusal(sshd, ssh_host="gpu7")
    assert text == f"node1: SSH at gpu7:{sshd.port}: Name or service not known"


def test_a_machine_that_opens_no_channel_any_more_is_named(runner, monkeypatch):
    def open_session(transport, timeout):
        raise paramiko.SSHException("Timeout opening channel.")

    monkeypatch.setattr(paramiko.Transport, "open_session", open_session)
    with pytest.raises(ClusterError) as caught:
        runner.run(["true"])
    assert str(caught.value) == "node1: Timeout opening channel"


# --- host keys ---


def test_an_unknown_host_key_is_refused_with_its_fingerprint(sshd, tmp_path):
    text = refusal(sshd, known_hosts=tmp_path / "none")
    assert f"unknown host key ssh-ed25519 {fingerprint(sshd.host_key)}" in text
    assert not (tmp_path / "none").exists()


def test_an_unknown_host_key_is_remembered_and_shown_if_the_user_says_so(sshd, tmp_path, capfd):
    known = tmp_path / "ssh" / "known_hosts"
    connect(sshd, accept=True, known_hosts=known).close()
    assert known.read_text() == f"[127.0.0.1]:{sshd.port} {public_key(sshd.host_key)}\n"
    assert known.stat().st_mode & 0o777 == 0o600
    assert fingerprint(sshd.host_key) in capfd.readouterr().err
    connect(sshd, known_hosts=known).close()


@pytest.mark.parametrize("accept", [False, True])
def test_a_changed_host_key_is_always_refused(sshd, tmp_path, accept):
    other, known = make_key(tmp_path / "other"), tmp_path / "known_hosts"
    known.write_text(f"[127.0.0.1]:{sshd.port} {public_key(other)}\n")
    text = refusal(sshd, accept=accept, known_hosts=known)
    assert "the host key has CHANGED" in text
    assert fingerprint(sshd.host_key) in text
    assert public_key(sshd.host_key) not in known.read_text()


def test_a_host_key_of_another_type_counts_as_changed(sshd, tmp_path):
    other, known = tmp_path / "rsa", tmp_path / "known_hosts"
    subprocess.run(["ssh-keygen", "-q", "-t", "rsa", "-N", "", "-f", str(other)], check=True)
    known.write_text(f"[127.0.0.1]:{sshd.port} {public_key(other)}\n")
    assert "CHANGED" in refusal(sshd, accept=True, known_hosts=known)


def test_a_host_key_of_the_csv_is_the_only_one_that_counts(sshd, tmp_path):
    nothing = tmp_path / "none"
    for right in (public_key(sshd.host_key), fingerprint(sshd.host_key)):
        connect(sshd, known_hosts=nothing, host_key=right).close()
    other = make_key(tmp_path / "other")
    for wrong in (public_key(other), fingerprint(other)):
        text = refusal(sshd, accept=True, known_hosts=nothing, host_key=wrong)
        assert f"not the CSV's host_key {wrong}" in text
    assert not nothing.exists()


def test_known_hosts_may_have_patterns_and_several_keys_of_a_type(sshd, tmp_path):
    """As an administrator writes them for all nodes of a cluster."""
    other, known = make_key(tmp_path / "other"), tmp_path / "known_hosts"
    known.write_text("".join(
        f"[127.0.0.*]:*,!nobody {public_key(path)}\n" for path in (other, sshd.host_key)
    ))  # fmt: skip
    connect(sshd, known_hosts=known).close()
    known.write_text(f"127.0.0.1 {public_key(sshd.host_key)}\n")
    connect(sshd, known_hosts=known).close()
    known.write_text(f"* {public_key(other)}\n")
    assert "CHANGED" in refusal(sshd, accept=True, known_hosts=known)


def test_ssh_config_may_trust_new_machines_and_forget_them(sshd, home):
    """As users of short-lived machines have it."""
    (home / "config").write_text(
        "Host 127.0.0.1\n  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n"
    )
    for _ in range(2):
        SshRunner(sshd.node(), SshConnector({}, False)).close()
    assert not (home / "known_hosts").exists()


def test_markers_and_damaged_lines_of_known_hosts_are_skipped(sshd, tmp_path):
    """Authorities, and keys that they revoke, are OpenSSH's own; no line of theirs is a key."""
    path, key = tmp_path / "known_hosts", public_key(sshd.host_key)
    name = f"[127.0.0.1]:{sshd.port}"
    path.write_text(f"@cert-authority * {key}\n{name} ssh-ed25519 AAA\n{name} {key}\n")
    connect(sshd, known_hosts=path).close()
    path.write_text(f"@cert-authority * {key}\n@revoked * {key}\n")
    assert "unknown host key" in refusal(sshd, known_hosts=path)


# --- logins ---


def test_a_wrong_password_is_refused_and_never_shown(sshd, home, caplog, capfd):
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


def test_a_login_without_key_and_password_is_refused(sshd, home):
    assert "node1: login of root refused; tried your keys (" in refusal(sshd, key_filename=None)


def test_a_missing_key_file_is_named(sshd):
    assert "key_filename /none: no such file" in refusal(sshd, key_filename="/none")


def test_an_encrypted_key_that_no_agent_has_is_named(sshd, home):
    key = home / "id_ed25519"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "open", "-f", key], check=True)
    text = refusal(sshd, key_filename=None)
    assert f"{key} is encrypted: give it to an agent with ssh-add" in text


def test_a_machine_that_also_wants_a_second_factor_says_so(tmp_path):
    with running_sshd(tmp_path / "two", "AuthenticationMethods publickey,password") as two:
        assert "after a key, it also wants password" in refusal(two)
        refused = refusal(two, password=PASSWORD)
        assert "tried your keys and the CSV's password" in refused
        assert "Failed password" in (two.folder / "sshd.log").read_text()


def test_the_password_is_tried_even_after_too_many_keys(tmp_path, home):
    """Six keys in the agent use up MaxAuthTries before the password's turn."""
    with running_sshd(tmp_path / "strict", "MaxAuthTries 2") as strict:
        for name in ("id_ed25519", "id_ecdsa", "id_rsa"):
            kind = name.removeprefix("id_")
            command = ["ssh-keygen", "-q", "-t", kind, "-N", "", "-f", str(home / name)]
            subprocess.run(command, check=True)
        text = refusal(strict, key_filename=None, password=PASSWORD)
        assert "tried your keys and the CSV's password" in text
        log = strict.folder / "sshd.log"  # which is written after the answer
        wait_until(lambda: "Failed password for root" in log.read_text())


# --- ~/.ssh/config ---


def test_an_alias_of_ssh_config_is_enough(sshd, home):
    (home / "config").write_text(
        f"Include more\nHost gpu1\n  HostName 127.0.0.1\n  Port {sshd.port}\n  User root\n"
    )
    (home / "more").write_text(f"Host gpu*\n  IdentityFile {sshd.user_key}\n")
    runner = connect(sshd, ssh_host="gpu1", ssh_port=None, ssh_username=None, key_filename=None)
    assert runner.run(["echo", "hi"]).text == "hi\n"
    runner.close()


def test_columns_of_the_csv_win_over_ssh_config(sshd, home):
    (home / "config").write_text("Host *\n  Port 1\n  User nobody\n")
    connect(sshd).close()


def test_a_damaged_ssh_config_is_named(sshd, home):
    (home / "config").write_text("Host x\n  Prot 22\n")
    assert "~/.ssh/config:" in refusal(sshd)
    assert "bad configuration option" in refusal(sshd).lower()
