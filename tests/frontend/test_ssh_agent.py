"""Logins with the keys of a real ssh-agent, with a real sshd."""

import os
import subprocess

import pytest

from tests.helpers.sshd import connect, make_key, public_key, refusal, running_sshd
from tests.helpers.waiting import wait_until

pytestmark = pytest.mark.slow


def logged_in(sshd, **changes):
    """Logs in, and runs a command; returns what it prints."""
    runner = connect(sshd, **changes)
    try:
        return runner.run(["echo", "in"]).text
    finally:
        runner.close()


@pytest.fixture
def agent(tmp_path):
    """Yields a function that starts an agent with some keys, and returns its socket."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(*keys):
        path = tmp_path / f"agent-{len(processes)}"
        processes.append(subprocess.Popen(["ssh-agent", "-D", "-a", str(path)]))
        wait_until(path.exists)
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


def only_public(home, sshd, name="work"):
    """Puts the public half of the server's key into ~/.ssh."""
    path = home / f"{name}.pub"
    path.write_text(public_key(sshd.user_key) + "\n")
    return path


@pytest.fixture(scope="module")
def strict(tmp_path_factory):
    """A server that hangs up after two wrong keys."""
    with running_sshd(tmp_path_factory.mktemp("strict") / "sshd", "MaxAuthTries 2") as server:
        yield server


@pytest.mark.parametrize("identity", ["~/.ssh/work", "~/.ssh/work.pub", "%d/.ssh/work"])
def test_identities_only_still_uses_the_agents_key_of_an_identity_file(
    strict, home, agent, tmp_path, monkeypatch, identity
):
    others = [make_key(tmp_path / f"other-{number}") for number in range(4)]
    monkeypatch.setenv("SSH_AUTH_SOCK", str(agent(*others, strict.user_key)))
    only_public(home, strict)
    row = configure(home, strict, "IdentitiesOnly yes", f"IdentityFile {identity}")
    assert logged_in(strict, **row) == "in\n"


def test_identities_only_uses_no_other_key_of_the_agent(sshd, home, agent, monkeypatch):
    monkeypatch.setenv("SSH_AUTH_SOCK", str(agent(sshd.user_key)))
    make_key(home / "other")
    row = configure(home, sshd, "IdentitiesOnly yes", "IdentityFile ~/.ssh/other")
    assert "login of root refused" in refusal(sshd, **row)
    assert logged_in(sshd, **configure(home, sshd, "IdentityFile ~/.ssh/other")) == "in\n"


def test_the_agents_key_of_an_identity_file_comes_before_its_others(
    strict, home, agent, tmp_path, monkeypatch
):
    others = [make_key(tmp_path / f"other-{number}") for number in range(4)]
    monkeypatch.setenv("SSH_AUTH_SOCK", str(agent(*others, strict.user_key)))
    only_public(home, strict)
    assert logged_in(strict, **configure(home, strict, "IdentityFile ~/.ssh/work")) == "in\n"


def test_the_agent_serves_a_key_whose_file_is_encrypted(sshd, home, agent, monkeypatch):
    key = home / "id_ed25519"
    key.write_text(sshd.user_key.read_text())
    key.chmod(0o600)
    monkeypatch.setenv("SSH_AUTH_SOCK", str(agent(key)))
    subprocess.run(["ssh-keygen", "-q", "-p", "-P", "", "-N", "open", "-f", key], check=True)
    assert logged_in(sshd, **configure(home, sshd)) == "in\n"


def test_an_agent_that_does_not_answer_is_skipped(sshd, home, monkeypatch):
    monkeypatch.setenv("SSH_AUTH_SOCK", "/none")
    assert "login of root refused; tried your keys (" in refusal(sshd, **configure(home, sshd))
    assert logged_in(sshd) == "in\n"
