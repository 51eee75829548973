"""Machines over SSH that TCP does not reach: jump hosts, and a command of the user's."""

import os
import shutil
import signal
import subprocess

import pytest

from impala_tf.frontend.errors import ClusterError
from impala_tf.frontend.ssh import SshRunner
from impala_tf.frontend.ssh_login import SshConnector
from tests.helpers.sshd import connect, refusal, running_sshd, trust
from tests.helpers.waiting import wait_until


@pytest.fixture
def jump(sshd, tmp_path, home):
    """A jump host, and the alias `inner` for a machine behind it."""
    with running_sshd(tmp_path / "jump") as found:
        trust(sshd, found)
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


def behind(sshd, connector, host="inner", port=None):
    return SshRunner(sshd.node(ssh_host=host, ssh_port=port), connector)


@pytest.mark.parametrize("users_own", [False, True])
def test_machines_behind_a_jump_host_share_its_connection(sshd, jump, home, tmp_path, users_own):
    """Also that of the user's: a second factor is then asked for once a day."""
    path = tmp_path / "users"
    if users_own:
        with (home / "config").open("a") as file:
            file.write(f"Host *\n  ControlPath {path}\n")
    connector = SshConnector({}, False)
    machines = [behind(sshd, connector) for _ in range(3)]
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


def test_a_jump_host_behind_another_one_and_new_host_keys(sshd, jump, home, capfd, monkeypatch):
    monkeypatch.setenv("SHELL", str(shutil.which("zsh")))  # ssh lets it run the way to the second
    (home / "known_hosts").unlink()
    with pytest.raises(ClusterError) as caught:
        behind(sshd, SshConnector({}, False))
    (text,) = caught.value.problems
    assert text.startswith("node1: jump host jump: ") and "Host key verification failed" in text
    for host, port in (("inner", None), ("twice", sshd.port)):
        connector = SshConnector({}, True)
        runner = behind(sshd, connector, host, port)
        assert runner.run(["echo", "in"]).text == "in\n"
        runner.close()
        connector.close()
    find = ["ssh-keygen", "-F", f"[127.0.0.1]:{jump.port}", "-f", home / "known_hosts"]
    assert "ssh-ed25519" in subprocess.check_output(find, text=True)
    assert "Permanently added" in capfd.readouterr().err


def test_a_jump_host_that_refuses_is_named_and_asked_once(sshd, home):
    """Many refused logins lock a user out."""
    trust(sshd)
    (home / "config").write_text(f"Host inner\n  ProxyJump nobody@127.0.0.1:{sshd.port}\n")
    log = sshd.folder / "sshd.log"
    connector = SshConnector({}, False)
    for _ in range(2):
        with pytest.raises(ClusterError, match="node1: jump host nobody@.*: Permission denied"):
            behind(sshd, connector)
    connector.close()
    # The server notices only later that a client has gone.
    wait_until(lambda: log.read_text().count("by authenticating user nobody") > 0)
    assert log.read_text().count("by authenticating user nobody") == 1


def test_a_machine_that_a_jump_host_does_not_reach_is_named(sshd, jump):
    text = refusal(sshd, ssh_host="inner", ssh_port=1)
    assert text.startswith("node1: SSH at 127.0.0.1:1 by way of jump: Stdio forwarding request fai")


def test_a_jump_host_that_is_lost_is_logged_in_to_again(sshd, jump):
    connector = SshConnector({}, False)
    runner = behind(sshd, connector)
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


def test_a_proxy_command_carries_the_connection(sshd, home):
    trust(sshd)
    command = "sh -c '[ %n%% = 127.0.0.1%% ] && nc %h %p'"
    (home / "config").write_text(f"Host 127.0.0.1\n  ProxyCommand {command}\n")
    runner = connect(sshd)
    assert runner.run(["echo", "through"]).text == "through\n"
    runner.close()
    (home / "config").write_text("Host 127.0.0.1\n  ProxyCommand echo no way >&2\n")
    assert refusal(sshd).endswith(": no way")
