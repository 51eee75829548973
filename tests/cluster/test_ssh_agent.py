"""Logins with the keys of a real ssh-agent, with a real sshd."""

import os
import socket
import subprocess

import pytest

from tests.helpers.sshd import connect, make_key, public_key, refusal, running_sshd, trust
from tests.helpers.waiting import wait_until

pytestmark = pytest.mark.usefixtures("sshd")  # which says if there is none


def logged_in(sshd, **changes):
    """Logs in, and runs a command; returns what it prints."""
    runner = connect(sshd, **changes)
    try:
        return runner.run(["echo", "in"]).text
    finally:
        runner.close()


def answers(path):
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0


@pytest.fixture
def agent(tmp_path):
    """Yields a function that starts an agent with some keys, and returns its socket."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(*keys):
        path = tmp_path / f"agent-{len(processes)}"
        processes.append(subprocess.Popen(["ssh-agent", "-D", "-a", str(path)]))
        wait_until(lambda: answers(path))  # its file is there before it listens
        for key in keys:
            subprocess.run(
                ["ssh-add", "-q", str(key)],
                check=True, env={**os.environ, "SSH_AUTH_SOCK": str(path)},
            )  # fmt: skip
        return path

    yield start
    for process in processes:
        process.terminate()
        process.wait(timeout=60)


def configure(home, sshd, *lines):
    text = ["Host gpu1", "HostName 127.0.0.1", f"Port {sshd.port}", "User root", *lines]
    (home / "config").write_text("\n  ".join(text) + "\n")
    return {"ssh_host": "gpu1", "ssh_port": None, "ssh_username": None, "key_filename": None}


@pytest.fixture(scope="module")
def strict(tmp_path_factory):
    """A server that hangs up after two wrong keys."""
    with running_sshd(tmp_path_factory.mktemp("strict") / "sshd", "MaxAuthTries 2") as server:
        yield server


@pytest.mark.parametrize(
    ("identity", "only"),
    [("~/.ssh/work", ""), ("~/.ssh/work.pub", "IdentitiesOnly yes"), ("%d/.ssh/work", "")],
)
def test_the_agents_key_of_an_identity_file_comes_before_its_others(
    strict, home, agent, tmp_path, monkeypatch, identity, only
):
    trust(strict)
    others = [make_key(tmp_path / f"other-{number}") for number in range(4)]
    monkeypatch.setenv("SSH_AUTH_SOCK", str(agent(*others, strict.user_key)))
    (home / "work.pub").write_text(public_key(strict.user_key) + "\n")
    row = configure(home, strict, only, f"IdentityFile {identity}")
    assert logged_in(strict, **row) == "in\n"


def test_the_agent_serves_a_key_whose_file_is_encrypted(sshd, home, agent, monkeypatch):
    trust(sshd)
    key = home / "id_ed25519"
    key.write_text(sshd.user_key.read_text())
    key.chmod(0o600)
    monkeypatch.setenv("SSH_AUTH_SOCK", str(agent(key)))
    subprocess.run(["ssh-keygen", "-q", "-p", "-P", "", "-N", "open", "-f", key], check=True)
    assert logged_in(sshd, **configure(home, sshd)) == "in\n"
    monkeypatch.setenv("SSH_AUTH_SOCK", "/none")
    assert "login of root refused; tried your keys (" in refusal(sshd, **configure(home, sshd))
