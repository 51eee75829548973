"""Machines over SSH that TCP does not reach: jump hosts, and a command of the user's."""

import os
import signal
import subprocess

import pytest

from impala_tf.cluster.runner import ClusterError
from tests.helpers.sshd import connect, refusal, running_sshd, trust


@pytest.fixture
def jump(sshd, tmp_path, home):
    """A jump host; `inner` and, by way of it, `twice` are names of the sshd behind it."""
    with running_sshd(tmp_path / "jump") as found:
        trust(sshd, found)
        (home / "config").write_text(
            f"Host jump\n  HostName 127.0.0.1\n  Port {found.port}\n  User root\n"
            f"  IdentityFile {found.user_key}\n"
            f"Host inner\n  HostName 127.0.0.1\n  Port {sshd.port}\n  ProxyJump jump\n"
            f"  IdentityFile {sshd.user_key}\n"
            f"Host twice\n  HostName 127.0.0.1\n  Port {sshd.port}\n  ProxyJump jump,root@inner\n"
        )
        yield found


def reached(sshd, host):
    return connect(sshd, ssh_host=host, ssh_port=None)


@pytest.mark.parametrize("host", ["inner", "twice"])
def test_a_machine_behind_jump_hosts_runs_commands_also_after_they_were_lost(sshd, jump, host):
    runner = reached(sshd, host)
    assert runner.run(["echo", "in"]).text == "in\n"
    server = (jump.folder / "sshd.pid").read_text().strip()
    for session in subprocess.check_output(["pgrep", "-P", server], text=True).split():
        os.kill(int(session), signal.SIGKILL)
    try:  # it fails, unless the loss was noticed before
        runner.run(["sleep", "1"])
    except ClusterError as error:
        assert "node1: " in str(error)
    assert runner.run(["echo", "back"]).text == "back\n"
    runner.close()


def test_a_proxy_command_carries_the_connection(sshd, home):
    trust(sshd)
    command = "sh -c '[ %n%% = 127.0.0.1%% ] && nc %h %p'"
    (home / "config").write_text(f"Host 127.0.0.1\n  ProxyCommand {command}\n")
    runner = connect(sshd)
    assert runner.run(["echo", "through"]).text == "through\n"
    runner.close()
    (home / "config").write_text("Host 127.0.0.1\n  ProxyCommand echo no way >&2\n")
    assert refusal(sshd).endswith(": no way")
