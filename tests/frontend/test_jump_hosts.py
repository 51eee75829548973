"""Machines over SSH that TCP does not reach: jump hosts, and a command of the user's."""

import os
import shutil
import signal
import socket
import subprocess
import time

import pytest

from impala_tf.frontend.errors import ClusterError
from impala_tf.frontend.ssh import SshRunner
from impala_tf.frontend.ssh_login import SshConnector
from tests.helpers.ports import free_port
from tests.helpers.sshd import connect, refusal, running_sshd
from tests.helpers.waiting import wait_until


@pytest.fixture
def jump(sshd, tmp_path, home):
    """A jump host, and the alias `inner` for a machine behind it."""
    with running_sshd(tmp_path / "jump") as found:
        (home / "config").write_text(
            f"Host jump\n  HostName 127.0.0.1\n  Port {found.port}\n  User root\n"
            f"  IdentityFile {found.user_key}\n"
            f"Host inner\n  HostName 127.0.0.1\n  Port {sshd.port}\n  ProxyJump jump\n"
            f"  IdentityFile {sshd.user_key}\n"
            "Host twice\n  HostName 127.0.0.1\n  ProxyJump jump,root@inner\n"
        )
        yield found


def logins(sshd):
    return (sshd.folder / "sshd.log").read_text().count("Accepted publickey")


def known_hosts_of(path, *servers):
    path.write_text("".join(each.known_hosts.read_text() for each in servers))
    return path


@pytest.mark.parametrize("users_own", [False, True])
def test_machines_behind_a_jump_host_share_its_connection(sshd, jump, home, tmp_path, users_own):
    """Also that of the user's: a second factor is then asked for once a day."""
    path = tmp_path / "users"
    if users_own:
        with (home / "config").open("a") as file:
            file.write(f"Host *\n  ControlPath {path}\n")
    connector = SshConnector({}, False, known_hosts_of(tmp_path / "both", sshd, jump))
    machines = [SshRunner(sshd.node(ssh_host="inner", ssh_port=None), connector) for _ in range(3)]
    assert [each.run(["echo", "in"]).text for each in machines] == ["in\n"] * 3
    assert logins(jump) == 1
    for each in machines:
        each.close()
    connector.close()
    assert path.exists() == users_own
    if users_own:
        subprocess.run(["ssh", "-S", path, "-O", "exit", "x"], check=True, capture_output=True)
    log = jump.folder / "sshd.log"
    wait_until(lambda: "Disconnected from" in log.read_text(), what="end of the connection")


def test_a_jump_host_behind_another_one_and_new_host_keys(sshd, jump, tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("SHELL", str(shutil.which("zsh")))  # ssh lets it run the way to the second
    known = tmp_path / "new"
    node = sshd.node(ssh_host="inner", ssh_port=None)
    with pytest.raises(ClusterError) as caught:
        SshRunner(node, SshConnector({}, False, known))
    (text,) = caught.value.problems
    assert text.startswith("node1: jump host jump: ") and "Host key verification failed" in text
    assert text.endswith("does ssh jump work?") and "\n" not in text
    for host in ("inner", "twice"):
        connector = SshConnector({}, True, known)
        port = None if host == "inner" else sshd.port
        runner = SshRunner(sshd.node(ssh_host=host, ssh_port=port), connector)
        assert runner.run(["echo", "in"]).text == "in\n"
        runner.close()
        connector.close()
    find = ["ssh-keygen", "-F", f"[127.0.0.1]:{jump.port}", "-f", known]  # it may be hashed
    assert "ssh-ed25519" in subprocess.check_output(find, text=True)
    assert "Permanently added" in capfd.readouterr().err


def test_a_jump_host_that_refuses_is_named_and_asked_once(sshd, home):
    """Many refused logins lock a user out."""
    (home / "config").write_text(f"Host inner\n  ProxyJump nobody@127.0.0.1:{sshd.port}\n")
    log = sshd.folder / "sshd.log"
    before = log.read_text().count("by authenticating user nobody")
    connector = SshConnector({}, False, sshd.known_hosts)
    for _ in range(2):
        with pytest.raises(ClusterError) as caught:
            SshRunner(sshd.node(ssh_host="inner"), connector)
        assert caught.value.problems == [
            f"node1: jump host nobody@[127.0.0.1]:{sshd.port}: "
            "nobody@127.0.0.1: Permission denied (publickey,password); "
            f"does ssh nobody@[127.0.0.1]:{sshd.port} work?"
        ]
    connector.close()
    # The server notices only later that a client has gone.
    wait_until(lambda: log.read_text().count("by authenticating user nobody") > before)
    assert log.read_text().count("by authenticating user nobody") == before + 1


def test_a_machine_that_a_jump_host_does_not_reach_is_named(sshd, jump, monkeypatch):
    monkeypatch.setattr("impala_tf.frontend.ssh_login.CONNECT_TIMEOUT_S", 120.0)
    started = time.monotonic()
    text = refusal(sshd, ssh_host="inner", ssh_port=1, known_hosts=jump.known_hosts)
    assert text.startswith("node1: SSH at 127.0.0.1:1 by way of jump: Stdio forwarding request fai")
    assert time.monotonic() - started < 60, "it waited for a command that had ended"


def test_a_jump_host_that_is_lost_is_logged_in_to_again(sshd, jump, tmp_path):
    connector = SshConnector({}, False, known_hosts_of(tmp_path / "both", sshd, jump))
    runner = SshRunner(sshd.node(ssh_host="inner", ssh_port=None), connector)
    server = (jump.folder / "sshd.pid").read_text().strip()
    for session in subprocess.check_output(["pgrep", "-P", server], text=True).split():
        os.kill(int(session), signal.SIGKILL)
    try:  # it fails, unless the loss was noticed before
        runner.run(["sleep", "1"])
    except ClusterError as error:
        assert "node1: " in str(error)
    assert runner.run(["echo", "back"]).text == "back\n"
    assert logins(jump) == 2
    runner.close()
    connector.close()


def test_forwardings_of_a_jump_host_take_no_port(sshd, jump, home, tmp_path):
    """The user's own ssh to it may want the port during the run."""
    port = free_port()
    with (home / "config").open("a") as file:
        file.write(f"Host jump\n  LocalForward {port} 127.0.0.1:1\n")
    connector = SshConnector({}, False, known_hosts_of(tmp_path / "both", sshd, jump))
    runner = SshRunner(sshd.node(ssh_host="inner", ssh_port=None), connector)
    socket.create_server(("127.0.0.1", port)).close()
    assert runner.run(["echo", "in"]).text == "in\n"
    runner.close()
    connector.close()


def test_a_jump_host_needs_the_command_ssh(sshd, jump, monkeypatch):
    with monkeypatch.context() as without:
        without.setenv("PATH", "/none")
        text = refusal(sshd, ssh_host="inner")
    assert "node1: SSH needs the command ssh, and there is none here" in text


def test_a_proxy_command_carries_the_connection(sshd, home):
    command = "sh -c '[ %n%% = 127.0.0.1%% ] && nc %h %p'"
    (home / "config").write_text(f"Host 127.0.0.1\n  ProxyCommand {command}\n")
    runner = connect(sshd)
    assert runner.run(["echo", "through"]).text == "through\n"
    runner.close()
    (home / "config").write_text("Host 127.0.0.1\n  ProxyCommand echo no way >&2\n")
    assert refusal(sshd).endswith(": no way")
