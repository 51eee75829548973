"""A real sshd on a free port of this machine, with its own keys, for one test module."""

import contextlib
import dataclasses
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from impala_tf.cluster.plan import NodeSpec
from impala_tf.cluster.remote import SshRunner
from impala_tf.cluster.runner import ClusterError
from tests.helpers.ports import free_port
from tests.helpers.programs import need
from tests.helpers.waiting import wait_until


@dataclasses.dataclass
class Sshd:
    """A running server."""

    folder: Path
    port: int
    host_key: Path
    user_key: Path
    known_hosts: Path

    def node(self, **changes):
        """Returns the server as a machine that can run processes, with a key that it accepts."""
        return NodeSpec(
            "node1", "127.0.0.1", False, str(self.folder / "work"), sys.executable,
            "logs", "127.0.0.1", self.port, "root", str(self.user_key),
        )._replace(**changes)  # fmt: skip


def make_key(path):
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
    return path


def public_key(path):
    """Returns the type and the key of a public key file, without the comment."""
    return " ".join(path.with_name(f"{path.name}.pub").read_text().split()[:2])


def fingerprint(path):
    done = subprocess.check_output(["ssh-keygen", "-l", "-f", f"{path}.pub"], text=True)
    return done.split()[1]


def configuration(folder, port, host_key, authorized_keys, more=()):
    """Returns the text of an sshd_config; the lines in `more` win."""
    lines = [
        *more, f"Port {port}", f"HostKey {host_key}", f"AuthorizedKeysFile {authorized_keys}",
        f"PidFile {folder}/sshd.pid", "PermitRootLogin yes", "PasswordAuthentication yes",
        "KbdInteractiveAuthentication no", "UsePAM no", "StrictModes no",
        "Subsystem sftp internal-sftp",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


@contextlib.contextmanager
def running_sshd(folder, *settings, environment=""):
    """Runs a server until the block ends; its sessions share a private tmux server.

    Args:
      folder: keys, configuration, log; made if it does not exist.
      settings: more lines of its sshd_config.
      environment: NAME=VALUE of variables of its sessions, separated by blanks.
    """
    sshd = need("sshd", "openssh-server")
    folder.mkdir(exist_ok=True)
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    host_key, user_key = make_key(folder / "host_key"), make_key(folder / "user_key")
    (folder / "authorized_keys").write_text(public_key(user_key) + "\n")
    (folder / "work").mkdir()
    port = free_port()
    tmux = folder / "tmux"
    tmux.mkdir(mode=0o700)
    # In an inner shell, bash does not read this user's own .bashrc, which may be slow or hang.
    more = [
        "ListenAddress 127.0.0.1",
        f"SetEnv TMUX_TMPDIR={tmux} SHLVL=5 {environment}",
        *settings,
    ]
    config = folder / "sshd_config"
    config.write_text(configuration(folder, port, host_key, folder / "authorized_keys", more))
    known_hosts = folder / "known_hosts"
    known_hosts.write_text(f"[127.0.0.1]:{port} {public_key(host_key)}\n")
    with (folder / "sshd.log").open("wb") as log:
        process = subprocess.Popen([sshd, "-D", "-e", "-f", str(config)], stderr=log)
    try:
        wait_until(lambda: _listens(port))
        yield Sshd(folder, port, host_key, user_key, known_hosts)
    finally:
        process.terminate()
        process.wait(timeout=10)
        environment = {**os.environ, "TMUX_TMPDIR": str(tmux)}
        subprocess.run(["tmux", "kill-server"], capture_output=True, env=environment)


def _listens(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def trust(*servers):
    """Adds the host keys of servers to ~/.ssh/known_hosts, in the home folder of a test."""
    known = Path(os.environ["HOME"]) / ".ssh" / "known_hosts"
    known.parent.mkdir(mode=0o700, exist_ok=True)
    with known.open("a") as file:
        file.writelines(each.known_hosts.read_text() for each in servers)


def connect(sshd, password=None, **changes):
    """Returns a runner for the server."""
    return SshRunner(sshd.node(**changes), password)


def refusal(sshd, **arguments):
    """Returns why `connect` with these arguments is refused."""
    with pytest.raises(ClusterError) as caught:
        connect(sshd, **arguments)
    return str(caught.value)
