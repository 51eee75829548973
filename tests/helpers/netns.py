"""Network namespaces as machines: an address, processes and an sshd of their own. Needs root."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import uuid
from pathlib import Path
from typing import Any

from tests.helpers.sshd import configuration, make_key, public_key
from tests.helpers.waiting import wait_until

_NETWORK = "10.213.77"
HERE = f"{_NETWORK}.254"
"""The address of the machine that launches."""
# With a process namespace, everything that a test leaves running ends with its machine.
_BOOT = 'mount --bind "$1" /proc/sys/kernel/random/boot_id && exec "$2" -D -e -f "$3"'


class Node:
    """A machine.

    Attributes:
      space: the name of its network namespace.
      address: where its sshd listens.
      folder: its files.
      home: the home folder of everybody who logs in.
      host_key: of its sshd.
    """

    def __init__(self, space, address, folder, authorized_keys):
        self.space, self.address, self.folder = space, address, folder
        folder.mkdir()
        self.host_key = make_key(folder / "host_key")
        self._config = folder / "sshd_config"
        self._process: Any = None
        tmux = folder / "tmux"
        tmux.mkdir(mode=0o700)
        self.home = folder / "home"
        self.home.mkdir()
        more = [f"ListenAddress {address}", f"SetEnv TMUX_TMPDIR={tmux} HOME={self.home}"]
        text = configuration(folder, 22, self.host_key, authorized_keys, more)
        self._config.write_text(text)

    @property
    def workdir(self):
        return self.folder / "work"

    def boot(self):
        wait_until(lambda: not self.answers())  # What ran before it is gone.
        boot_id = self.folder / "boot_id"
        boot_id.write_text(f"{uuid.uuid4()}\n")
        command = ["ip", "netns", "exec", self.space, "unshare", "--pid", "--fork", "--kill-child",
                   "--mount-proc", "sh", "-c", _BOOT, "sh", str(boot_id), _sshd(),
                   str(self._config)]  # fmt: skip
        with (self.folder / "sshd.log").open("ab") as log:
            self._process = subprocess.Popen(command, stderr=log)

    def shut_down(self):
        """Ends all its processes at once, as a power cut does."""
        self._process.kill()
        self._process.wait(timeout=10)

    def reboot(self):
        self.shut_down()
        self.boot()

    def freeze_sshd(self):
        """Lets it accept connections and answer none. Sessions that are open stay so."""
        os.kill(self._sshd_pid(), signal.SIGSTOP)

    def thaw_sshd(self):
        os.kill(self._sshd_pid(), signal.SIGCONT)

    def cut_off(self):
        """Takes its network away."""
        _ip("-n", self.space, "link", "set", "eth0", "down")

    def reconnect(self):
        _ip("-n", self.space, "link", "set", "eth0", "up")

    def run(self, *command):
        """Runs a command in its network; returns what it prints."""
        words = ["ip", "netns", "exec", self.space, *command]
        return subprocess.run(words, check=True, capture_output=True, text=True).stdout

    def processes(self):
        """Returns the command lines of all its processes."""
        space = Path(f"/proc/{self._sshd_pid()}/ns/pid").readlink()
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if (folder / "ns" / "pid").readlink() == space:
                    found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        return found

    def answers(self):
        """Tells whether its sshd can be reached from itself; others may have no way to it."""
        probe = ["bash", "-c", f"exec 3<>/dev/tcp/{self.address}/22"]
        words = ["ip", "netns", "exec", self.space, *probe]
        return subprocess.run(words, capture_output=True, timeout=10).returncode == 0

    def _sshd_pid(self):
        pid = self._process.pid
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def _sshd():
    return shutil.which("sshd") or "/usr/sbin/sshd"


@contextlib.contextmanager
def network_of(folder, count):
    """Runs `count` machines on a bridge until the block ends; yields (nodes, the user's key).

    Args:
      folder: keys, configurations and work folders.
      count: machines.
    """
    name = f"imp{os.getpid()}"
    user_key = make_key(folder / "user_key")
    (folder / "authorized_keys").write_text(public_key(user_key) + "\n")
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    _remove_those_of_ended_processes()
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
            cleanup.enter_context(_node(folder, name, number)) for number in range(1, count + 1)
        ]
        for node in nodes:
            wait_until(node.answers, what="answer of sshd")
        yield nodes, user_key


@contextlib.contextmanager
def hidden_node(gate, folder, name):
    """Runs a machine that has a link to the machine `gate` only, until the block ends.

    Its address is 10.213.78.2; that of the gate, on this link, is 10.213.78.1.

    Args:
      gate: a node of `network_of`.
      folder: of the network.
      name: of its own folder.
    """
    space, address = f"{gate.space}h", "10.213.78.2"
    with _namespace(space):
        _ip("-n", gate.space, "link", "add", "eth1", "type", "veth", "peer", "name", "eth0",
            "netns", space)  # fmt: skip
        _ip("-n", gate.space, "address", "add", "10.213.78.1/24", "dev", "eth1")
        _ip("-n", gate.space, "link", "set", "eth1", "up")
        _up(space, address)
        node = Node(space, address, folder / name, folder / "authorized_keys")
        node.boot()
        try:
            yield node
        finally:
            node.shut_down()
            # With its namespace it would go, too, but later: then its name is still taken.
            _ip("-n", gate.space, "link", "del", "eth1")


def know(path, nodes):
    """Writes the host keys of machines to a known_hosts file."""
    lines = [f"{node.address} {public_key(node.host_key)}\n" for node in nodes]
    path.write_text("".join(lines))


def _remove_those_of_ended_processes():
    """A test that was killed leaves its bridge, which has the same addresses as the next one."""
    spaces = subprocess.run(["ip", "netns"], check=True, capture_output=True, text=True).stdout
    links = "\n".join(path.name for path in Path("/sys/class/net").iterdir())
    for kind, names in (("netns", spaces), ("link", links)):
        for name, owner in re.findall(r"^(imp(\d+)\S*)", names, re.MULTILINE):
            if not Path(f"/proc/{owner}").exists():
                # A link may be gone together with the namespace of its other end.
                subprocess.run(["ip", kind, "del", name], capture_output=True)


@contextlib.contextmanager
def _node(folder, bridge, number):
    space, address = f"{bridge}-{number}", f"{_NETWORK}.{number}"
    with _namespace(space):
        outer = f"{bridge}v{number}"
        _ip("link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", space)
        _ip("link", "set", outer, "master", bridge, "up")
        _up(space, address)
        node = Node(space, address, folder / f"node{number}", folder / "authorized_keys")
        node.boot()
        try:
            yield node
        finally:
            node.shut_down()
            _ip("link", "del", outer)


@contextlib.contextmanager
def _namespace(space):
    _ip("netns", "add", space)
    try:
        yield
    finally:
        _ip("netns", "del", space)


def _up(space, address):
    _ip("-n", space, "address", "add", f"{address}/24", "dev", "eth0")
    for device in ("lo", "eth0"):
        _ip("-n", space, "link", "set", device, "up")


def _ip(*words):
    subprocess.run(["ip", *words], check=True)
