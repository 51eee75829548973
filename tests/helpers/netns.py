"""Network namespaces as machines: an address, processes and an sshd of their own. Needs root."""

import contextlib
import dataclasses
import functools
import os
import shutil
import socket
import subprocess
from pathlib import Path

from tests.helpers.sshd import configuration, make_key, public_key
from tests.helpers.waiting import wait_until

_NETWORK = "10.213.77"
HERE = f"{_NETWORK}.254"
"""The address of the machine that launches."""


@dataclasses.dataclass
class Node:
    """A machine."""

    address: str
    folder: Path
    host_key: Path

    @property
    def workdir(self):
        return self.folder / "work"


@contextlib.contextmanager
def network_of(folder, count):
    """Runs `count` machines on a bridge until the block ends; yields (nodes, the user's key).

    Args:
      folder: keys, configurations and work folders.
      count: machines.
    """
    name = f"imp{os.getpid() % 100000}"
    user_key = make_key(folder / "user_key")
    (folder / "authorized_keys").write_text(public_key(user_key) + "\n")
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    with contextlib.ExitStack() as cleanup:
        _ip("link", "add", name, "type", "bridge")
        cleanup.callback(_ip, "link", "del", name)
        _ip("address", "add", f"{HERE}/24", "dev", name)
        _ip("link", "set", name, "up")
        if shutil.which("iptables"):
            # Docker makes the kernel drop packets that cross a bridge, unless a rule accepts them.
            rule = ("FORWARD", "-i", name, "-o", name, "-j", "ACCEPT")
            subprocess.run(["iptables", "-w", "-I", *rule], check=True)
            cleanup.callback(subprocess.run, ["iptables", "-w", "-D", *rule], check=True)
        nodes = [
            cleanup.enter_context(_node(folder / f"node{number}", name, number))
            for number in range(1, count + 1)
        ]
        for node in nodes:
            wait_until(functools.partial(_answers, node.address), what="answer of sshd")
        yield nodes, user_key


@contextlib.contextmanager
def _node(folder, bridge, number):
    folder.mkdir()
    space, address = f"{bridge}-{number}", f"{_NETWORK}.{number}"
    _ip("netns", "add", space)
    try:
        outer = f"{bridge}v{number}"
        _ip("link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", space)
        _ip("link", "set", outer, "master", bridge, "up")
        _ip("-n", space, "address", "add", f"{address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            _ip("-n", space, "link", "set", device, "up")
        host_key, tmux = make_key(folder / "host_key"), folder / "tmux"
        tmux.mkdir(mode=0o700)
        more = [f"ListenAddress {address}", f"SetEnv TMUX_TMPDIR={tmux}"]
        keys = folder.parent / "authorized_keys"
        config = folder / "sshd_config"
        config.write_text(configuration(folder, 22, host_key, keys, more))
        # With a process namespace, everything that a test leaves running ends with its machine.
        command = [
            "ip", "netns", "exec", space, "unshare", "--pid", "--fork", "--kill-child",
            "--mount-proc", shutil.which("sshd") or "/usr/sbin/sshd", "-D", "-e", "-f", str(config),
        ]  # fmt: skip
        with (folder / "sshd.log").open("wb") as log:
            process = subprocess.Popen(command, stderr=log)
        try:
            yield Node(address, folder, host_key)
        finally:
            process.kill()
            process.wait(timeout=10)
    finally:
        _ip("netns", "del", space)


def _ip(*words):
    subprocess.run(["ip", *words], check=True)


def _answers(address):
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((address, 22)) == 0
