"""Machines over SSH, with a real sshd: host keys, logins, commands, and connections that fail."""

import json
import logging
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from impala_tf.cluster.inventory import Secret
from impala_tf.cluster.runner import ClusterError
from impala_tf.machine.supervision import start_ticks
from tests.helpers.hostile import HOSTILE
from tests.helpers.sshd import (
    connect,
    fingerprint,
    make_key,
    public_key,
    refusal,
    trust,
)
from tests.helpers.waiting import wait_until

PASSWORD = Secret("canary-7c1f")


@pytest.fixture(autouse=True)
def known(sshd, home):
    """The file of known hosts, which names the server."""
    trust(sshd)
    return home / "known_hosts"


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


def test_a_command_has_status_input_and_both_outputs(runner, sshd):
    done = runner.run(["sh", "-c", "pwd; cat; echo bad >&2; exit 5"], "héllo".encode())
    assert (done.status, done.text) == (5, f"{sshd.folder}/work\nhéllo")
    assert (done.stderr, done.last_line) == (b"bad\n", "bad")
    assert runner.run(["/no/such/program"]).status == 127
    relative = os.path.relpath(sys.executable, runner.run(["printenv", "HOME"]).text.strip())
    assert runner.run([f"~/{relative}", "-c", "print(6 * 7)"]).text == "42\n", "~/ is not the home"


def test_output_and_input_larger_than_the_ssh_window_do_not_block(runner):
    script = "import sys; [s.write('x' * 5_000_000) for s in (sys.stderr, sys.stdout)]"
    done = runner.run([sys.executable, "-c", script])
    assert len(done.stdout) == len(done.stderr) == 5_000_000
    assert runner.run(["sh", "-c", "exit 3"], b"x" * 20_000_000).status == 3, "it reads no input"


def test_an_answer_that_does_not_end_is_refused(runner):
    with pytest.raises(ClusterError, match="node1: it answers with more than 64 MiB"):
        runner.run(["cat", "/dev/zero"])


def test_a_command_that_hangs_times_out(runner):
    with pytest.raises(ClusterError, match="node1: no answer within 0.2 s"):
        runner.run(["sleep", "1000"], timeout_s=0.2)
    assert runner.run(["echo", "again"]).text == "again\n", "it did not connect again"


@pytest.mark.parametrize("how", ["finish", "lost"])
def test_a_long_command_ends_when_nobody_wants_it_any_more(runner, how):
    """Without a terminal, sshd leaves what it started running: an installation, for example."""
    script = "echo $$ > pid; sleep 1000 & echo up; wait"
    running = runner.start(["sh", "-c", script])
    assert running.output.readline() == b"up\n"
    pid = int(Path(runner.node.workdir, "pid").read_text())
    {"finish": running.finish, "lost": runner.close}[how]()
    wait_until(lambda: start_ticks(pid) is None, what="end of the command")


# --- connections that fail ---


def test_a_lost_connection_is_named_and_the_next_command_connects_again(runner):
    with pytest.raises(ClusterError, match="node1: "):
        runner.run(["sh", "-c", "kill -9 $PPID; sleep 30"])
    assert runner.run(["echo", "back"]).text == "back\n"


def test_a_machine_that_does_not_answer_is_named(sshd, monkeypatch):
    monkeypatch.setattr("impala_tf.cluster.remote.CONNECT_TIMEOUT_S", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        assert f"SSH at 127.0.0.1:{port}" in refusal(sshd, ssh_port=port)
    assert refusal(sshd, ssh_port=port) == f"node1: SSH at 127.0.0.1:{port}: Connection refused"
    assert f"node1: SSH at no-such.invalid:{sshd.port}: " in refusal(
        sshd, ssh_host="no-such.invalid"
    )


# --- host keys ---


def accept_new(home, how="accept-new"):
    (home / "config").write_text(f"Host *\n  StrictHostKeyChecking {how}\n")


def test_an_unknown_host_key_is_refused_unless_ssh_itself_would_take_it(sshd, home, known, capfd):
    known.unlink()
    text = refusal(sshd)
    assert f"unknown host key ssh-ed25519 {fingerprint(sshd.host_key)}" in text
    assert f"ssh -p {sshd.port} -l root -i {sshd.user_key} 127.0.0.1" in text
    assert not known.exists()
    accept_new(home)
    connect(sshd).close()
    assert known.read_text() == f"[127.0.0.1]:{sshd.port} {public_key(sshd.host_key)}\n"
    assert fingerprint(sshd.host_key) in capfd.readouterr().err
    (home / "config").unlink()
    connect(sshd).close()


@pytest.mark.parametrize(
    ("kind", "how"), [("ed25519", "ask"), ("rsa", "accept-new"), ("rsa", "no")]
)
def test_a_changed_host_key_is_always_refused(sshd, home, known, tmp_path, kind, how):
    other = tmp_path / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-f", str(other)], check=True)
    known.write_text(f"[127.0.0.1]:{sshd.port} {public_key(other)}\n")
    accept_new(home, how)
    assert "the host key has CHANGED" in refusal(sshd)
    assert public_key(sshd.host_key) not in known.read_text()


def test_a_host_key_of_the_csv_is_the_only_one_that_counts(sshd, home, known, tmp_path):
    known.unlink()
    accept_new(home)
    for right in (public_key(sshd.host_key), fingerprint(sshd.host_key)):
        connect(sshd, host_key=right).close()
    other = make_key(tmp_path / "other")
    for wrong in (public_key(other), fingerprint(other)):
        assert f"not the CSV's {wrong}" in refusal(sshd, host_key=wrong)
    assert not known.exists()


def test_lines_of_known_hosts_mean_what_they_mean_to_openssh(sshd, home, known, tmp_path):
    other, key = public_key(make_key(tmp_path / "other")), public_key(sshd.host_key)
    name = f"[127.0.0.1]:{sshd.port}"
    for text in (
        f"[127.0.0.*]:*,!nobody {other}\n[127.0.0.*]:*,!nobody {key}\n",  # patterns, several keys
        f"@cert-authority * {other}\n{name} ssh-ed25519 AAA\n{name} {key}\n",  # a damaged line
    ):
        known.write_text(text)
        connect(sshd).close()
    known.write_text(f"{name} {key}\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", known], check=True, capture_output=True)
    connect(sshd).close()
    accept_new(home)
    for text in (f"* {other}\n", f"{name} {key}\n@revoked * {key}\n", f"@revoked * {key}\n"):
        known.write_text(text)
        assert "CHANGED" in refusal(sshd)
    (home / "config").unlink()
    known.write_text(f"@cert-authority * {key}\n")
    assert "unknown host key" in refusal(sshd), "certificates of hosts are OpenSSH's own"


# --- logins ---


def test_a_password_is_used_in_place_of_keys_and_never_shown(sshd, caplog, capfd):
    caplog.set_level(logging.DEBUG)
    with pytest.raises(ClusterError) as caught:
        connect(sshd, password=PASSWORD)
    text = str(caught.value)
    assert "node1: login of root refused; tried the CSV's password" in text
    log = sshd.folder / "sshd.log"  # which is written after the answer
    wait_until(lambda: "Failed password for root" in log.read_text())
    shown = f"{text} {caplog.text} {capfd.readouterr()} {caught.getrepr(showlocals=False)}"
    processes = subprocess.check_output(["ps", "axeww"], text=True)
    assert PASSWORD.reveal() not in shown + processes + log.read_text()


def test_keys_that_cannot_be_used_are_named(sshd, home):
    assert "node1: login of root refused; tried your keys (" in refusal(sshd, key_filename=None)
    assert "key_filename /none: no such file" in refusal(sshd, key_filename="/none")
    key = home / "id_ed25519"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "open", "-f", key], check=True)
    assert f"{key} is encrypted: give it to an agent with" in refusal(sshd, key_filename=None)


# --- ~/.ssh/config ---


def test_an_alias_of_ssh_config_is_enough_and_columns_of_the_csv_win(sshd, home):
    (home / "config").write_text(
        f"Include more\nHost gpu1\n  HostName 127.0.0.1\n  Port {sshd.port}\n  User root\n"
        "Host *\n  Port 1\n  User nobody\n"
    )
    (home / "more").write_text(f"Host gpu*\n  IdentityFile {sshd.user_key}\n")
    connect(sshd, ssh_host="gpu1", ssh_port=None, ssh_username=None, key_filename=None).close()
    connect(sshd).close()
