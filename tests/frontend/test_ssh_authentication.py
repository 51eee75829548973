"""Logins that `ssh HOST` manages, with a real sshd and a real ssh-agent: second factors, agents."""

import contextlib
import os
import pty
import subprocess
import sys
import termios
from typing import Any

import paramiko
import pytest

from impala_tf.config import Given
from impala_tf.frontend.errors import ClusterError
from impala_tf.frontend.host_keys import HostKeys
from impala_tf.frontend.inventory import Secret
from impala_tf.frontend.launcher import new_record, plan_of
from impala_tf.frontend.record import save
from impala_tf.frontend.ssh import SshRunner
from impala_tf.frontend.ssh_authentication import Login
from impala_tf.frontend.ssh_login import SshConnector
from impala_tf.frontend.ssh_settings import lookup
from tests.helpers.runs import PROJECT
from tests.helpers.sshd import make_key, public_key, running_sshd
from tests.helpers.waiting import wait_until

pytestmark = pytest.mark.slow

PASSWORD = "right-7c1f"


def logged_in(sshd, password=None, ask=lambda prompt: None, **changes):
    """Logs in, and runs a command; returns what it prints."""
    passwords = {"node1": Secret(password)} if password else {}
    connector = SshConnector(passwords, False, sshd.known_hosts, ask)
    runner = SshRunner(sshd.node(**changes), connector)
    try:
        return runner.run(["echo", "in"]).text
    finally:
        runner.close()


def refusal(sshd, **arguments):
    with pytest.raises(ClusterError) as caught:
        logged_in(sshd, **arguments)
    (line,) = str(caught.value).splitlines()
    return line


# --- second factors ---


@pytest.fixture(scope="module")
def two_factors(tmp_path_factory):
    """A server that wants a key and then a password, as such or as an answer to a question."""
    with contextlib.ExitStack() as stack:
        yield {
            method: stack.enter_context(
                running_sshd(
                    tmp_path_factory.mktemp("two") / "sshd",
                    "UsePAM yes",
                    "KbdInteractiveAuthentication yes",
                    f"AuthenticationMethods {methods}",
                    password=PASSWORD,
                )  # fmt: skip
            )
            for method, methods in {
                "password": "publickey,password",
                "keyboard-interactive": "publickey,keyboard-interactive",
                "only": "keyboard-interactive",
            }.items()
        }


@pytest.mark.parametrize("method", ["password", "keyboard-interactive"])
def test_a_second_factor_that_nobody_can_give_is_named(two_factors, method):
    """The launcher went on without being logged in, and failed later with another error."""
    text = refusal(two_factors[method])
    assert text.startswith("node1: the login of root is only half done: the machine also wants ")
    assert f"(method {method}), and nobody can be asked here" in text


@pytest.mark.parametrize("method", ["password", "keyboard-interactive", "only"])
def test_the_csvs_password_is_the_second_factor(two_factors, method):
    assert logged_in(two_factors[method], password=PASSWORD) == "in\n"
    text = refusal(two_factors[method], password="wrong-5a3c")
    assert "login of root refused; tried your keys and the CSV's password" in text
    assert "wrong-5a3c" not in text


@pytest.mark.parametrize("method", ["password", "keyboard-interactive"])
def test_a_person_is_asked_for_the_second_factor(two_factors, method):
    asked = []

    def ask(prompt):
        asked.append(prompt)
        return Secret(PASSWORD)

    assert logged_in(two_factors[method], ask=ask) == "in\n"
    (prompt,) = asked
    assert "password" in prompt.lower()
    assert method == "password" or prompt.startswith("node1: ")


def test_a_person_is_asked_for_the_second_factor_of_a_jump_host_once(
    two_factors, strict, home, tmp_path
):
    """By ssh itself, on the terminal, whatever the jump host asks; two machines are behind it."""
    jump = two_factors["keyboard-interactive"]
    (home / "known_hosts").write_text(jump.known_hosts.read_text() + strict.known_hosts.read_text())
    (home / "config").write_text(
        f"Host jump\n  HostName 127.0.0.1\n  Port {jump.port}\n  IdentityFile {jump.user_key}\n"
        f"Host in*\n  HostName 127.0.0.1\n  Port {strict.port}\n  ProxyJump jump\n"
        f"  IdentityFile {strict.user_key}\nHost *\n  User root\n"
    )
    csv = tmp_path / "w.csv"
    csv.write_text("job,ip,tf_port,ssh_host\nlearner,10.0.0.1,8001,in1\nactor,10.0.0.2,,in2\n")
    ours, terminal = pty.openpty()
    command = ["setsid", "--ctty", "--wait", sys.executable, "-m", "frontend", "doctor",
               f"--workers_csv_path={csv}"]  # fmt: skip
    process = subprocess.Popen(command, cwd=PROJECT, stdin=terminal, stdout=terminal,
                               stderr=terminal)  # fmt: skip
    os.close(terminal)
    shown = b""
    with contextlib.suppress(OSError):  # the other side is closed
        while data := os.read(ours, 65536):
            shown += data
            if data.rstrip().endswith(b"assword:"):
                os.write(ours, f"{PASSWORD}\n".encode())
    assert process.wait(20) == 1, "they have no project"
    assert shown.count(b"assword:") == 1
    assert b"in1" in shown and b"in2" in shown and b"no answer" not in shown


@pytest.mark.parametrize("word", ["doctor", "status"])
def test_ctrl_c_ends_the_question_for_a_password_and_the_echo_comes_back(
    strict, home, tmp_path, word
):
    """The process waits for its threads, one of which asks."""
    (home / "known_hosts").write_text(strict.known_hosts.read_text())
    csv = tmp_path / "w.csv"
    csv.write_text(
        "job,ip,tf_port,ssh_host,ssh_port,ssh_username\n"
        f"learner,10.0.0.1,8001,127.0.0.1,{strict.port},root\n"
        "actor,127.0.0.1,,,,\n"
    )
    given = Given({"workers_csv_path": str(csv), "logdir": str(tmp_path)})
    save(new_record(plan_of(given, sys.executable)[0], given), tmp_path)
    words = [f"--workers_csv_path={csv}"] if word == "doctor" else [f"--logdir={tmp_path}"]
    ours, terminal = pty.openpty()
    command = ["setsid", "--ctty", sys.executable, "-m", "frontend", word, *words]
    process = subprocess.Popen(command, cwd=PROJECT, stdin=terminal, stdout=terminal,
                               stderr=terminal)  # fmt: skip
    shown = b""
    while b"password of root" not in shown:
        shown += os.read(ours, 65536)
    wait_until(lambda: not termios.tcgetattr(terminal)[3] & termios.ECHO)
    os.write(ours, b"\x03")
    assert process.wait(60) == 130
    assert termios.tcgetattr(terminal)[3] & termios.ECHO
    os.close(terminal)
    os.close(ours)


def test_two_keys_can_be_the_two_factors(tmp_path, home):
    with running_sshd(tmp_path / "keys", "AuthenticationMethods publickey,publickey") as sshd:
        text = refusal(sshd)
        assert "also wants another key, and it takes none of your others" in text
        other = make_key(home / "id_ed25519")
        with (sshd.folder / "authorized_keys").open("a") as file:
            file.write(public_key(other) + "\n")
        assert logged_in(sshd) == "in\n"


class Asking:
    """A machine that takes no password as such, but asks questions instead."""

    def __init__(self, *questions):
        self._questions = [(text, False) for text in questions]
        self.answers = None

    def get_remote_server_key(self):
        return paramiko.ECDSAKey.generate()

    def auth_password(self, user, password, fallback):
        raise paramiko.BadAuthenticationType("", ["keyboard-interactive"])

    def auth_interactive(self, user, answer):
        self.answers = answer("", "", self._questions)
        return []

    def is_authenticated(self):
        return True


def test_a_password_does_not_answer_the_question_for_a_code():
    asked = []

    def ask(prompt):
        asked.append(prompt)
        return Secret("123456")

    settings = lookup("127.0.0.1", 22, "root", "node1")
    login = Login("node1", settings, Secret(PASSWORD), ask, ask, HostKeys((), "x", None, False))
    login.keys_are_refused = True
    machine: Any = Asking("Verification code: \x1b[2J", "Password: ")
    login.authenticate(machine)
    assert machine.answers == ["123456", PASSWORD]
    assert asked == ["node1: Verification code: [2J"], "it could control the terminal"
    machine = Asking("Password: ", "Password: ")
    login.authenticate(machine)
    assert machine.answers == [PASSWORD, "123456"], (
        "a password that was refused would be sent again and again"
    )


# --- agents ---


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


def test_nobody_is_asked_for_the_passphrase_of_a_key_that_the_agent_has(
    sshd, home, agent, monkeypatch
):
    key = home / "id_ed25519"
    key.write_text(sshd.user_key.read_text())
    key.chmod(0o600)
    monkeypatch.setenv("SSH_AUTH_SOCK", str(agent(key)))
    subprocess.run(["ssh-keygen", "-q", "-p", "-P", "", "-N", "open", "-f", key], check=True)

    def ask(prompt):
        raise AssertionError(prompt)

    assert logged_in(sshd, ask=ask, **configure(home, sshd)) == "in\n"


@pytest.mark.parametrize("setting", ["{}", '"{}"', "SSH_AUTH_SOCK", "$MY_SOCKET", "${{MY_SOCKET}}"])
def test_the_identity_agent_of_ssh_config_is_used(sshd, home, agent, monkeypatch, setting):
    path = agent(sshd.user_key)
    if setting == "SSH_AUTH_SOCK":
        monkeypatch.setenv("SSH_AUTH_SOCK", str(path))
    monkeypatch.setenv("MY_SOCKET", str(path))
    row = configure(home, sshd, f"IdentityAgent {setting.format(path)}")
    assert logged_in(sshd, **row) == "in\n"


def test_no_agent_is_used_if_ssh_config_says_so(sshd, home, agent, monkeypatch):
    monkeypatch.setenv("SSH_AUTH_SOCK", str(agent(sshd.user_key)))
    assert logged_in(sshd, **configure(home, sshd)) == "in\n"
    text = refusal(sshd, **configure(home, sshd, "IdentityAgent none"))
    assert "login of root refused; tried your keys (" in text


def test_an_agent_that_does_not_answer_is_named(sshd, home, monkeypatch):
    monkeypatch.setenv("SSH_AUTH_SOCK", "/none")
    text = refusal(sshd, **configure(home, sshd))
    assert "tried your keys without the agent's: no SSH agent answers at /none" in text
    assert logged_in(sshd) == "in\n"


# --- certificates ---


@pytest.fixture(scope="module")
def certified(tmp_path_factory):
    """A server that takes certificates only; its folder has the authority's key, `authority`."""
    folder = tmp_path_factory.mktemp("certified")
    authority = make_key(folder / "authority")
    settings = f"TrustedUserCAKeys {authority}.pub", "AuthorizedKeysFile none", "MaxAuthTries 3"
    with running_sshd(folder / "sshd", *settings) as server:
        yield server


def certify(sshd, key, *options):
    """Makes KEY-cert.pub; returns it."""
    command = ["ssh-keygen", "-q", "-s", sshd.folder.parent / "authority", "-I", "me", "-n", "root"]
    subprocess.run([*command, *options, f"{key}.pub"], check=True)
    return key.with_name(f"{key.name}-cert.pub")


def by_openssh(sshd, home):
    options = ["-o", "BatchMode=yes", "-o", f"UserKnownHostsFile={sshd.known_hosts}"]
    command = ["ssh", "-F", str(home / "config"), *options, "gpu1", "echo in"]
    return subprocess.run(command, capture_output=True, text=True).stdout


def new_key(path, kind):
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-f", path], check=True)
    return path


@pytest.mark.parametrize("kind", ["ed25519", "rsa"])
@pytest.mark.parametrize("has_agent", [False, True])
@pytest.mark.parametrize("is_beside", [False, True])
def test_a_certificate_in_a_file_logs_in(
    certified, home, agent, tmp_path, monkeypatch, kind, has_agent, is_beside
):
    """Its key may be in an agent, with more keys than the machine lets one try."""
    key = new_key(tmp_path / "id", kind)
    certificate = certify(certified, key)
    if not is_beside:
        certificate = certificate.rename(tmp_path / "corp.pub")
    lines = [f"IdentityFile {key}"] if is_beside else [f"CertificateFile {certificate}"]
    if has_agent:
        others = [make_key(tmp_path / f"other-{number}") for number in range(4)]
        monkeypatch.setenv("SSH_AUTH_SOCK", str(agent(*others, key)))
        key.unlink()
    elif not is_beside:
        lines.append(f"IdentityFile {key}")
    row = configure(home, certified, *lines)
    assert by_openssh(certified, home) == "in\n"
    assert logged_in(certified, **row) == "in\n"


@pytest.mark.parametrize("kind", ["ed25519", "rsa"])
@pytest.mark.parametrize("has_key", [False, True])
@pytest.mark.parametrize("identities_only", [False, True])
def test_a_certificate_in_an_agent_logs_in(
    certified, home, agent, tmp_path, monkeypatch, kind, has_key, identities_only
):
    key = new_key(tmp_path / "id", kind)
    certificate = certify(certified, key)
    path = str(agent(key))
    monkeypatch.setenv("SSH_AUTH_SOCK", path)
    if not has_key:
        subprocess.run(["ssh-add", "-q", "-d", "-k", key], check=True)
    key.unlink()
    certificate.unlink()
    lines = ["IdentitiesOnly yes", f"IdentityFile {key}"] if identities_only else []
    assert logged_in(certified, **configure(home, certified, *lines)) == "in\n"


def test_a_key_whose_certificate_has_expired_is_also_offered_alone(sshd, home, certified):
    key = home / "id_ed25519"
    key.write_text(sshd.user_key.read_text())
    key.chmod(0o600)
    key.with_name("id_ed25519.pub").write_text(public_key(sshd.user_key) + "\n")
    certify(certified, key, "-V", "-2d:-1d")
    assert logged_in(sshd, **configure(home, sshd)) == "in\n"
