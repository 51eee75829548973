"""Logs in to other machines: as ~/.ssh/config says, with the user's keys or the CSV's password.

OpenSSH itself logs in to jump hosts, so it uses the user's settings, keys and agents.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import pwd
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import paramiko
from cryptography.exceptions import UnsupportedAlgorithm

from impala_tf.config.addresses import host_port
from impala_tf.frontend.errors import ClusterError, said_by
from impala_tf.frontend.inventory import SSH_PORT, Secret
from impala_tf.frontend.plan import NodeSpec

CONNECT_TIMEOUT_S = 15.0
_KEEPALIVE_S = 15
_DEAD_PEER_MS = 30_000
_RESOLVE_S = 30.0
_TOKEN = re.compile("%(.)")
"""Tokens in IdentityFile and ProxyCommand; `ssh -G` replaces all others."""
# OpenSSH's "no" also accepts machines whose key has changed, which this launcher never does.
_ACCEPT_NEW = ("accept-new", "no", "off", "false")
_LOGIN_S = 150.0
"""How long a login may take: sshd gives a person two minutes to answer its questions."""
_NEXT_TRY_S = 10.0
"""How long to wait after a refused login to a jump host: many tries would lock the account."""
_ANSWER_S = 10.0
"""How long an ssh process of this machine may take to answer about its connection."""
_END_S = 2.0
_file_lock = threading.Lock()


class SshSettings(NamedTuple):
    """How OpenSSH would reach a machine and log in."""

    hostname: str
    port: int
    username: str
    key_filenames: tuple[Path, ...]
    """Private keys, or public keys whose private half the agent has. They need not exist."""
    identities_only: bool
    """Whether to use only those of the agent's keys that are in `key_filenames`."""
    known_hosts: tuple[Path, ...]
    """New keys are added to the first one."""
    accepts_new: bool
    """Whether to trust machines that no file names (StrictHostKeyChecking)."""
    host_key_name: str
    """The machine's name in known_hosts."""
    proxy_jump: str
    """[USER@]HOST[:PORT] of the hops before the machine, separated by commas; '' for none."""
    proxy_command: str
    """The command that carries the connection; '' for none."""


def settings_of(node: NodeSpec, ssh: Sequence[str]) -> SshSettings:
    """Returns the settings for a machine, as OpenSSH resolves them. The CSV's columns win.

    Args:
      node: the machine.
      ssh: the command `ssh`, with its configuration file.

    Raises:
      ClusterError: the configuration or the CSV's key cannot be used.
    """
    given = _ask_openssh(node, ssh)

    def first(key: str) -> str:
        value = given.get(key, [""])[0]
        return "" if value == "none" else value

    def paths(key: str) -> list[Path]:
        words = first(key).split() or [os.devnull]
        return [Path(word).expanduser() for word in words]

    home, user = _me()
    hostname, port, username = first("hostname"), int(first("port")), first("user")
    tokens = {
        "%": "%", "d": str(home), "h": hostname, "i": str(os.getuid()), "n": node.ssh_host,
        "p": str(port), "r": username, "u": user,
    }  # fmt: skip

    def expanded(text: str) -> str:
        return _TOKEN.sub(lambda each: tokens.get(each[1], each[0]), text)

    keys = [Path(expanded(text)).expanduser() for text in given.get("identityfile", ())]
    if node.key_filename is not None:
        keys = [Path(node.key_filename).expanduser(), *keys]
        if not keys[0].is_file():
            raise ClusterError(f"{node.name}: key_filename {keys[0]}: no such file")
    name = hostname if port == SSH_PORT else f"[{hostname}]:{port}"
    return SshSettings(
        hostname=hostname,
        port=port,
        username=username,
        key_filenames=tuple(keys),
        identities_only=first("identitiesonly") == "yes",
        known_hosts=(*paths("userknownhostsfile"), *paths("globalknownhostsfile")),
        accepts_new=first("stricthostkeychecking") in _ACCEPT_NEW,
        host_key_name=first("hostkeyalias") or name,
        proxy_jump=first("proxyjump"),
        proxy_command=expanded(first("proxycommand")),
    )


def _me() -> tuple[Path, str]:
    """Returns the user's home and name; in a container, a user id may have neither."""
    try:
        return Path.home(), getpass.getuser()
    except (KeyError, OSError, RuntimeError):
        return Path("/nonexistent"), str(os.getuid())


def _ask_openssh(node: NodeSpec, ssh: Sequence[str]) -> dict[str, list[str]]:
    """Returns {option: its values} from `ssh -G`."""
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:  # no program of OpenSSH works for a user id without a name
        port = str(node.ssh_port or SSH_PORT)
        return {"hostname": [node.ssh_host], "port": [port], "user": [str(node.ssh_username)]}
    command = [*ssh, "-G"]
    command += ["-p", str(node.ssh_port)] if node.ssh_port else []
    command += ["-l", node.ssh_username] if node.ssh_username else []
    try:
        done = subprocess.run(
            [*command, "--", node.ssh_host], capture_output=True, text=True, timeout=_RESOLVE_S
        )
    except FileNotFoundError:
        raise ClusterError(
            f"{node.name}: SSH needs the command ssh, and there is none here; on Debian: apt-get"
            " install openssh-client"
        ) from None
    except subprocess.TimeoutExpired:
        slow = f"ssh -G {node.ssh_host} takes longer than {_RESOLVE_S:g} s; is a Match exec slow?"
        raise ClusterError(f"{node.name}: ~/.ssh/config: {slow}") from None
    if done.returncode != 0:
        reason = (done.stderr.strip() or f"ssh -G {node.ssh_host} failed").splitlines()[-1]
        raise ClusterError(f"{node.name}: ~/.ssh/config: {reason}")
    options: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        option, _, value = line.partition(" ")
        options.setdefault(option, []).append(value)
    return options


class HostKeyError(paramiko.SSHException):
    """The machine's host key must not be trusted; the message says why and what to do."""


class HostKeys:
    """The host keys that a machine may have: the CSV's, or those of the known_hosts files."""

    def __init__(self, settings: SshSettings, from_csv: str | None) -> None:
        """Reads the files.

        Args:
          settings: the machine's name in the files, and where they are.
          from_csv: the only key to accept: 'TYPE BASE64' or 'SHA256:...'.
        """
        self._name, self._files = settings.host_key_name, settings.known_hosts
        self._accepts_new = settings.accepts_new
        self._from_csv = from_csv
        self._known = [from_csv] if from_csv else self._in_files(self._name)
        if not self._known:  # as in OpenSSH, a key that is known for any port counts, too
            without_port = re.sub(r"^\[(.*)\]:\d+$", r"\1", self._name)
            self._on_any_port = self._in_files(without_port)

    def _in_files(self, name: str) -> list[str]:
        """Returns the keys, 'TYPE BASE64', that the files have for a machine.

        OpenSSH finds them: names may be hashed, patterns, or excluded.
        """
        keys = []
        for path in filter(Path.exists, self._files):
            found = subprocess.run(
                ["ssh-keygen", "-F", name, "-f", str(path)], capture_output=True, text=True
            )
            lines = [line for line in found.stdout.splitlines() if not line.startswith(("#", "@"))]
            keys += [" ".join(line.split()[1:3]) for line in lines]
        return keys

    def prefer(self, transport: paramiko.Transport) -> None:
        """Lets a connection ask for types of keys that can be checked."""
        types = {key.split()[0].replace("ssh-rsa", "rsa-sha2-512") for key in self._known}
        options = transport.get_security_options()
        options.key_types = sorted(options.key_types, key=lambda name: name not in types)

    def check(self, key: paramiko.PKey) -> None:
        """Raises HostKeyError if the key that a machine shows is not the right one."""
        text = f"{key.get_name()} {key.get_base64()}"
        about = f"{key.get_name()} {key.fingerprint}"
        if any(known.rstrip("=") in (text.rstrip("="), key.fingerprint) for known in self._known):
            return
        if self._from_csv:
            raise HostKeyError(
                f"it shows the host key {about}, not the CSV's host_key {self._from_csv}; "
                "somebody may be intercepting the connection"
            )
        if self._known:
            raise HostKeyError(
                f"the host key has CHANGED: {about} is not in known_hosts, which has another one;"
                " somebody may be intercepting the connection. If you know why it changed, run"
                f" ssh-keygen -R '{self._name}'"
            )
        if text in self._on_any_port:
            return
        if not self._accepts_new:
            raise HostKeyError(
                f"unknown host key {about}; check that it is the machine's, then log in "
                "there once with ssh, or pass --accept_new_host_keys"
            )
        self._remember(f"{self._name} {text}\n")
        print(f"{self._name}: trusting its host key {about}", file=sys.stderr)

    def _remember(self, line: str) -> None:
        path = self._files[0]
        with _file_lock:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.touch(mode=0o600)
            before = path.read_bytes()
            with path.open("a", encoding="utf-8") as file:
                file.write(line if not before or before.endswith(b"\n") else f"\n{line}")


class _ProxySocket(socket.socket):
    """A socket for a command's input and output. Closing it ends the command."""

    def __init__(self, command: Sequence[str], may_ask: bool) -> None:
        """Starts the command.

        Args:
          command: the command's words.
          may_ask: whether the command keeps the terminal, to ask the user; then Ctrl-C ends it,
            too.

        Raises:
          OSError: the command cannot be started.
        """
        own_end, other = socket.socketpair()
        super().__init__(fileno=own_end.detach())
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        with other:
            self._process = subprocess.Popen(
                command, stdin=other.fileno(), stdout=other.fileno(), stderr=self._errors,
                start_new_session=not may_ask,
            )  # fmt: skip

    def close(self) -> None:
        """Ends the command, and waits for it."""
        super().close()
        self._process.terminate()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def said(self) -> str:
        """Ends the command; returns the end of its error output, in one line."""
        self.close()
        self._errors.seek(0)
        return _last(self._errors.read().decode(errors="replace").splitlines())


class _JumpHosts:
    """Logs in to jump hosts; all machines behind a jump host share its connection. Thread-safe."""

    def __init__(self, ssh: Sequence[str]) -> None:
        """Connects to nothing yet.

        Args:
          ssh: the command `ssh` with a configuration that shares connections (ControlMaster).
        """
        self._ssh = ssh
        self._lock = threading.Lock()
        self._refused: dict[str, tuple[float, str]] = {}

    def command(self, hops: str, target: str) -> list[str]:
        """Returns the command whose input and output are a connection to an address.

        Args:
          hops: [USER@]HOST[:PORT] of the jump hosts, separated by commas.
          target: host:port, as the last jump host reaches it.

        Raises:
          ClusterError: a jump host cannot be used; names it, and quotes ssh.
        """
        before, _, name = hops.rpartition(",")
        ssh = [*self._ssh, *(["-J", before] if before else [])]
        destination = f"ssh://{name}"
        with self._lock:
            if _run_quietly([*ssh, "-O", "check", destination]) != 0:
                tried_s, problem = self._refused.get(hops, (float("-inf"), ""))
                if time.monotonic() - tried_s > _NEXT_TRY_S:
                    problem = _log_in(ssh, destination)
                    self._refused[hops] = time.monotonic(), problem
                if problem:
                    raise ClusterError(f"jump host {name}: {problem}; does ssh {name} work?")
        return [*ssh, "-o", "BatchMode=yes", "-W", target, destination]


def _log_in(ssh: Sequence[str], destination: str) -> str:
    """Logs in, and leaves ssh in the background. Returns why that failed, or ''."""
    silent = [] if sys.stdin.isatty() and sys.stderr.isatty() else ["-o", "BatchMode=yes"]
    with tempfile.TemporaryFile("w+", errors="replace") as errors:
        try:
            status = subprocess.run(
                [*ssh, *silent, "-f", "-N", destination], stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=errors, timeout=_LOGIN_S,
            ).returncode  # fmt: skip
        except subprocess.TimeoutExpired:
            return f"no login within {_LOGIN_S:g} s"
        errors.seek(0)
        lines = errors.read().splitlines()
    for line in lines:
        if line.startswith("Warning: Permanently added"):
            print(line, file=sys.stderr)
    return "" if status == 0 else _last(lines) or f"ssh ended with status {status}"


def _run_quietly(command: Sequence[str]) -> int:
    """Runs a command of this machine without input or output; returns its exit status, or -1."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_ANSWER_S
        ).returncode
    return -1


def _last(lines: Sequence[str]) -> str:
    """Returns the last two lines of a program's output, as one line."""
    texts = (line.strip().rstrip(".") for line in lines)
    return "; ".join([text for text in texts if text][-2:])


# The user's own settings come in the middle: of each option, ssh takes the first value.
_CONFIGURATION = """\
Host *
{first}
  ClearAllForwardings yes
  ConnectTimeout 15
  ServerAliveInterval 15
  ServerAliveCountMax 2
  Include "{home}/.ssh/config"
  Include /etc/ssh/ssh_config
Match all
  UserKnownHostsFile "{home}/.ssh/known_hosts"
  ControlMaster auto
  ControlPath "{folder}/%C"
  ControlPersist 60
"""


class SshConnector:
    """Logs in to machines; shares connections to jump hosts. Thread-safe."""

    def __init__(self, passwords: Mapping[str, Secret], accept_new_host_keys: bool) -> None:
        """Connects to nothing yet.

        Args:
          passwords: {name of the node: password}, tried in place of keys; never shown.
          accept_new_host_keys: whether to trust and remember machines that are not known yet.
        """
        self._passwords = passwords
        # The paths of shared connections must be short.
        self._folder = Path(tempfile.mkdtemp(prefix="impala-", dir="/tmp"))
        self._end = weakref.finalize(self, _clean_up, self._folder)
        first = "  StrictHostKeyChecking accept-new" if accept_new_host_keys else ""
        text = _CONFIGURATION.format(first=first, home=_me()[0], folder=self._folder)
        configuration = self._folder / "config"
        configuration.write_text(text)
        self._ssh = ["ssh", "-F", str(configuration)]
        self._jump_hosts = _JumpHosts(self._ssh)

    def connect(self, node: NodeSpec) -> paramiko.Transport:
        """Logs in with the password or, without one, the CSV's key, those of ~/.ssh and the agent.

        Raises:
          ClusterError: with the reason in one line. For an unknown or changed host key, it includes
            the fingerprint.
        """
        settings, password = settings_of(node, self._ssh), self._passwords.get(node.name)
        try:
            return self._open(node, settings, password)
        except (ClusterError, HostKeyError) as error:  # ClusterError: of a jump host
            raise ClusterError(f"{node.name}: {error}") from None
        except paramiko.AuthenticationException as error:
            tried = "the CSV's password" if password else "your keys"
            raise ClusterError(
                f"{node.name}: login of {settings.username} refused; tried {tried} ({error})"
            ) from None
        # UnicodeError: ~/.ssh/config has a malformed HostName, such as a..b.
        except (paramiko.SSHException, OSError, EOFError, UnicodeError) as error:
            address = host_port(settings.hostname, settings.port)
            way = f" by way of {settings.proxy_jump}" if settings.proxy_jump else ""
            reason = said_by(error) or "the connection was closed"
            raise ClusterError(f"{node.name}: SSH at {address}{way}: {reason}") from None

    def close(self) -> None:
        """Closes the connections to jump hosts."""
        self._end()

    def _open(
        self, node: NodeSpec, settings: SshSettings, password: Secret | None
    ) -> paramiko.Transport:
        host_keys = HostKeys(settings, node.host_key)
        connection = self._socket(settings)
        transport = paramiko.Transport(connection)
        transport.banner_timeout = transport.auth_timeout = CONNECT_TIMEOUT_S
        host_keys.prefer(transport)
        try:
            transport.start_client(timeout=CONNECT_TIMEOUT_S)
            host_keys.check(transport.get_remote_server_key())
            _authenticate(transport, settings, password)
        except BaseException as error:
            transport.close()
            connection.close()
            is_lost = type(error) in (paramiko.SSHException, EOFError) or isinstance(error, OSError)
            if isinstance(connection, _ProxySocket) and is_lost and (output := connection.said()):
                raise paramiko.SSHException(output) from None
            raise
        transport.set_keepalive(_KEEPALIVE_S)
        return transport

    def _socket(self, settings: SshSettings) -> socket.socket:
        """Returns the socket for the connection: TCP, or a command's input and output."""
        address = (settings.hostname, settings.port)
        if settings.proxy_command:
            return _ProxySocket(["sh", "-c", f"exec {settings.proxy_command}"], may_ask=True)
        if settings.proxy_jump:
            jump = self._jump_hosts.command(settings.proxy_jump, host_port(*address))
            return _ProxySocket(jump, may_ask=False)
        connection = socket.create_connection(address, CONNECT_TIMEOUT_S)
        # Otherwise, a command on a machine that is switched off hangs for a quarter of an hour.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _DEAD_PEER_MS)
        return connection


def _clean_up(folder: Path) -> None:
    """Closes the shared connections of a folder, and removes it."""
    for path in folder.glob("*"):
        if path.is_socket():
            _run_quietly(["ssh", "-S", str(path), "-O", "exit", "jump-host"])
    shutil.rmtree(folder, ignore_errors=True)


def _authenticate(
    transport: paramiko.Transport, settings: SshSettings, password: Secret | None
) -> None:
    """Logs in with the password or, without one, with a key. Raises AuthenticationException."""
    if password is not None:
        if wanted := transport.auth_password(settings.username, password.reveal()):
            raise paramiko.AuthenticationException(f"it also wants {', '.join(wanted)}")
        return
    problems = ["no key was enough"]
    with contextlib.closing(paramiko.Agent()) as agent:
        for key in _keys(settings, agent.get_keys(), problems):
            try:
                if not (wanted := transport.auth_publickey(settings.username, key)):
                    return
                problems.append(f"after a key, it also wants {', '.join(wanted)}")
                break
            except paramiko.BadAuthenticationType:
                break  # the machine accepts no keys
            except (paramiko.SSHException, OSError, EOFError):
                if not transport.is_active():
                    raise
                # The key was refused, or the agent does not sign.
    raise paramiko.AuthenticationException("; ".join(problems))


def _keys(
    settings: SshSettings, of_agent: Sequence[paramiko.AgentKey], problems: list[str]
) -> Iterator[paramiko.PKey]:
    """Yields the user's keys: those of the files, then the agent's others.

    A file whose public half names a key of the agent is not read, as it may be encrypted.

    Args:
      settings: the files.
      of_agent: the agent's keys.
      problems: gets a line for each key that cannot be used.
    """
    left = {(key.get_name(), key.get_base64()): key for key in of_agent}
    for path in settings.key_filenames:
        public = path if path.suffix == ".pub" else path.with_name(f"{path.name}.pub")
        with contextlib.suppress(OSError, ValueError):
            kind, text, *_ = public.read_text(encoding="ascii").split()
            if (kind, text) in left:
                yield left.pop((kind, text))
                continue
        if path == public or not path.is_file():
            continue
        try:
            yield paramiko.PKey.from_path(path)
        except TypeError:  # it is encrypted
            problems.append(f"{path} is encrypted: give it to an agent with ssh-add")
        except (ValueError, OSError, UnsupportedAlgorithm, paramiko.pkey.UnknownKeyType) as error:
            problems.append(f"{path}: {said_by(error)}")
    if not settings.identities_only:
        yield from left.values()
