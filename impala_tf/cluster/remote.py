"""Other machines, over SSH: OpenSSH says how each is reached, paramiko logs in and runs commands.

`ssh -G HOST` reads the user's ssh_config, so what it says of a machine holds here: aliases, Match,
Include, ports, users, keys, known hosts. A ProxyCommand, or `ssh -W` through jump hosts, carries
the connection.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, cast

import paramiko
from cryptography.exceptions import UnsupportedAlgorithm

from impala_tf.cluster.inventory import SSH_PORT, Secret
from impala_tf.cluster.plan import NodeSpec
from impala_tf.cluster.runner import ClusterError, CommandRunner, Completed, Running
from impala_tf.config.addresses import host_port

CONNECT_TIMEOUT_S = 15.0
_RESOLVE_S = 30.0
_KEEPALIVE_S = 15
_DEAD_PEER_MS = 30_000
_CHUNK = 32768
_MOST_BYTES = 64 << 20
"""The longest answer of a command: a machine may be rented, and its answers are data."""
_LOST = "the connection was lost"
# A server drops some of many logins at once (MaxStartups, 10); a jump host gets all of them.
_proxied_logins = threading.Semaphore(8)
_known_hosts_lock = threading.Lock()

# Callers get every error as an exception; paramiko would also log it, with a traceback.
logging.getLogger("paramiko").setLevel(logging.CRITICAL)

Options = Mapping[str, str]
"""{option of ssh_config: its value}; where there are several, one a line."""


class SshRunner(CommandRunner):
    """Another machine.

    If the connection is lost, the running command fails, and the next one reconnects.
    """

    def __init__(self, node: NodeSpec, password: Secret | None = None) -> None:
        """Logs in with the password or, without one, the user's keys.

        Raises:
          ClusterError: with the reason in one line. For an unknown or changed host key, it includes
            the fingerprint.
        """
        super().__init__(node)
        self._password = password
        self._lock = threading.Lock()
        self._transport = _log_in(node, password)
        self._is_closed = False

    def _run(self, command: list[str], stdin: bytes, timeout_s: float) -> Completed:
        errors: list[bytes] = []
        with self._errors(timeout_s), contextlib.closing(self._channel(command)) as channel:
            channel.settimeout(timeout_s)
            # In a thread: a program blocks if nobody reads one of its two output streams.
            reader = threading.Thread(target=_read_errors, args=(channel, errors), daemon=True)
            reader.start()
            try:
                # A view: of bytes, paramiko copies all that is left after every packet.
                channel.sendall(cast(bytes, memoryview(stdin)))
                channel.shutdown_write()
            except OSError:
                if not channel.exit_status_ready():
                    raise  # else it has exited without reading all of its input
            output = _read(channel.recv)
            status = _status(channel)
            reader.join()
        return Completed(status, output, b"".join(errors))

    def _start(self, command: list[str]) -> Running:
        with self._errors(CONNECT_TIMEOUT_S):
            channel = self._channel(command)
        channel.set_combine_stderr(True)
        stdin, output = channel.makefile_stdin("wb"), channel.makefile("rb", _CHUNK)

        def wait() -> int:
            with contextlib.closing(channel), self._errors(CONNECT_TIMEOUT_S):
                return _status(channel)

        return Running(cast(IO[bytes], stdin), cast(IO[bytes], output), wait)

    def close(self) -> None:
        """Ends the connection for good."""
        self._is_closed = True
        self._transport.close()

    def _channel(self, command: Sequence[str]) -> paramiko.Channel:
        with self._lock:
            if not self._transport.is_active() and not self._is_closed:
                self._transport = _log_in(self.node, self._password)
            transport = self._transport
        channel = transport.open_session(timeout=CONNECT_TIMEOUT_S)
        channel.settimeout(CONNECT_TIMEOUT_S)
        channel.exec_command(shlex.join(command))  # the only place where a command becomes text
        channel.settimeout(None)
        return channel

    @contextlib.contextmanager
    def _errors(self, timeout_s: float) -> Iterator[None]:
        """Turns a connection's errors into a ClusterError that names the machine."""
        try:
            yield
        except (paramiko.SSHException, OSError, EOFError) as error:
            self._transport.close()  # the machine may be gone; only a new connection can tell
            slow = isinstance(error, TimeoutError)
            reason = f"no answer within {timeout_s:g} s" if slow else _reason(error) or _LOST
            raise ClusterError(f"{self.node.name}: {reason}") from error


def _read(receive: Callable[[int], bytes]) -> bytes:
    chunks, size = [], 0
    while chunk := receive(_CHUNK):
        chunks.append(chunk)
        size += len(chunk)
        if size > _MOST_BYTES:
            raise paramiko.SSHException(f"it answers with more than {_MOST_BYTES >> 20} MiB")
    return b"".join(chunks)


def _read_errors(channel: paramiko.Channel, into: list[bytes]) -> None:
    # No error here: the reader of the other stream decides, and closes both.
    with contextlib.suppress(TimeoutError, paramiko.SSHException):
        into.append(_read(channel.recv_stderr))


def _status(channel: paramiko.Channel) -> int:
    status = channel.recv_exit_status()
    if status == -1:  # paramiko's answer if the connection ended before the command did
        raise EOFError(_LOST)
    return status


def _reason(error: Exception) -> str:
    """Returns an error's text, without the system's error number."""
    text = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return text.rstrip(".")


# --- how a machine is reached ---


def _ask_openssh(node: NodeSpec) -> Options:
    """Returns the options for a machine from `ssh -G`. The CSV's columns win."""
    if node.key_filename and not Path(node.key_filename).is_file():
        raise ClusterError(f"{node.name}: key_filename {node.key_filename}: no such file")
    command = ["ssh", "-G", *node.ssh_options(), "--", node.ssh_host]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_RESOLVE_S)
    except FileNotFoundError:
        raise ClusterError(
            f"{node.name}: SSH needs the command ssh; on Debian: apt-get install openssh-client"
        ) from None
    except subprocess.TimeoutExpired as error:
        raise ClusterError(f"{node.name}: {error}") from None
    if done.returncode != 0:
        reason = (done.stderr.strip() or "failed").splitlines()[-1]
        raise ClusterError(f"{node.name}: ssh -G {node.ssh_host}: {reason}")
    options: dict[str, str] = {}
    for line in done.stdout.splitlines():
        option, _, value = line.partition(" ")
        if value != "none":
            options[option] = f"{options[option]}\n{value}" if option in options else value
    return options


class _ProxySocket(socket.socket):
    """A socket for a command's input and output. Closing it ends the command."""

    def __init__(self, command: Sequence[str]) -> None:
        """Starts the command, without a terminal. Raises OSError if it cannot be started."""
        own_end, other = socket.socketpair()
        super().__init__(fileno=own_end.detach())
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        with other:
            self._process = subprocess.Popen(
                command,
                stdin=other.fileno(),
                stdout=other.fileno(),
                stderr=self._errors,
                start_new_session=True,
            )

    def close(self) -> None:
        """Ends the command, and waits for it."""
        super().close()
        self._process.kill()
        self._process.wait()

    def last_words(self) -> str:
        """Ends the command; returns the last two lines of its error output, as one."""
        self.close()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").splitlines()
        return "; ".join([line.strip().rstrip(".") for line in lines if line.strip()][-2:])


def _open_socket(node: NodeSpec, options: Options) -> socket.socket:
    """Returns the socket for a connection: TCP, or a command's input and output."""
    host, port = options["hostname"], options["port"]
    if command := options.get("proxycommand"):
        # `ssh -G` leaves these tokens as they are.
        tokens = {"%": "%", "h": host, "n": node.ssh_host, "p": port, "r": options["user"]}
        text = re.sub("%(.)", lambda each: tokens.get(each[1], each[0]), command)
        return _ProxySocket(["sh", "-c", f"exec {text}"])
    if jumps := options.get("proxyjump"):
        *before, last = jumps.split(",")
        # It may use a connection that the user shares, and is itself no master: it is killed.
        ssh = ["ssh", "-o", "BatchMode=yes", "-o", "ControlMaster=no"]
        ssh += ["-J", ",".join(before)] if before else []
        last = last if "://" in last else f"ssh://{last}"
        return _ProxySocket([*ssh, "-W", host_port(host, int(port)), last])
    connection = socket.create_connection((host, int(port)), CONNECT_TIMEOUT_S)
    # Otherwise, a command on a machine that is switched off hangs for a quarter of an hour.
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _DEAD_PEER_MS)
    return connection


# --- logging in ---


def _log_in(node: NodeSpec, password: Secret | None) -> paramiko.Transport:
    """Returns a connection. Raises ClusterError."""
    options = _ask_openssh(node)
    is_direct = not options.keys() & {"proxyjump", "proxycommand"}
    try:
        with contextlib.nullcontext() if is_direct else _proxied_logins:
            return _connect(node, options, password)
    except paramiko.AuthenticationException as error:
        tried = "the CSV's password" if password else "your keys"
        raise ClusterError(
            f"{node.name}: login of {options['user']} refused; tried {tried} ({error})"
        ) from None
    # UnicodeError: ssh_config has a malformed HostName, such as a..b.
    except (paramiko.SSHException, OSError, EOFError, UnicodeError) as error:
        address = host_port(options["hostname"], int(options["port"]))
        way = f" by way of {options['proxyjump']}" if "proxyjump" in options else ""
        reason = _reason(error) or "the connection was closed"
        raise ClusterError(f"{node.name}: SSH at {address}{way}: {reason}") from None


def _connect(node: NodeSpec, options: Options, password: Secret | None) -> paramiko.Transport:
    host_keys = _HostKeys(node, options)
    connection = _open_socket(node, options)
    transport = paramiko.Transport(connection)
    transport.banner_timeout = transport.auth_timeout = CONNECT_TIMEOUT_S
    host_keys.prefer(transport.get_security_options())
    try:
        transport.start_client(timeout=CONNECT_TIMEOUT_S)
        if problem := host_keys.problem_with(transport.get_remote_server_key()):
            raise ClusterError(f"{node.name}: {problem}")
        _authenticate(transport, options, password)
    except BaseException as error:
        transport.close()
        connection.close()
        is_lost = type(error) in (paramiko.SSHException, EOFError) or isinstance(error, OSError)
        if isinstance(connection, _ProxySocket) and is_lost and (said := connection.last_words()):
            raise paramiko.SSHException(said) from None
        raise
    transport.set_keepalive(_KEEPALIVE_S)
    return transport


class _HostKeys:
    """The host keys that a machine may have: the CSV's, or those of the known_hosts files."""

    def __init__(self, node: NodeSpec, options: Options) -> None:
        """Reads the files. OpenSSH finds the lines: names may be hashed, patterns, or excluded."""
        host, port = options["hostname"], int(options["port"])
        name = host if port == SSH_PORT else f"[{host}]:{port}"
        self._node = node
        self._name = options.get("hostkeyalias", name)
        # OpenSSH's "no" also accepts a changed key.
        self._accepts_new = options["stricthostkeychecking"] in ("accept-new", "no", "false")
        names = ("userknownhostsfile", "globalknownhostsfile")
        files = " ".join(options.get(each, os.devnull) for each in names)
        self._files = [Path(word).expanduser() for word in files.split()]
        self._known, self._revoked = [node.host_key] if node.host_key else [], []
        for path in filter(Path.exists, [] if node.host_key else self._files):
            find = ["ssh-keygen", "-F", self._name, "-f", str(path)]
            for line in subprocess.run(find, capture_output=True, text=True).stdout.splitlines():
                marker, *words = line.split() if line.startswith("@") else ("", *line.split())
                key = " ".join(words[1:3])
                if marker == "@revoked":
                    self._revoked.append(key)
                elif not line.startswith(("#", "@")):  # certificates of hosts are OpenSSH's own
                    self._known.append(key)

    def prefer(self, options: paramiko.transport.SecurityOptions) -> None:
        """Lets a connection ask for types of keys that can be checked."""
        types = {key.split()[0].replace("ssh-rsa", "rsa-sha2-512") for key in self._known}
        options.key_types = sorted(options.key_types, key=lambda name: name not in types)

    def problem_with(self, key: paramiko.PKey) -> str:
        """Returns why the key that a machine shows must not be trusted, and what to do; or ''."""
        text = f"{key.get_name()} {key.get_base64()}"
        about = f"{key.get_name()} {key.fingerprint}"
        is_known = any(k.rstrip("=") in (text.rstrip("="), key.fingerprint) for k in self._known)
        if is_known and text not in self._revoked:
            return ""
        intercepted = "somebody may be intercepting the connection"
        if self._node.host_key:
            return f"its host key {about} is not the CSV's {self._node.host_key}; {intercepted}"
        if self._known or text in self._revoked:
            return (
                f"the host key has CHANGED: {about} is not what known_hosts has; {intercepted}. If"
                f" you know why it changed, run ssh-keygen -R '{self._name}'"
            )
        if not self._accepts_new:
            by_hand = shlex.join(["ssh", *self._node.ssh_options(), self._node.ssh_host])
            return (
                f"unknown host key {about}; check that it is the machine's, then log in once with"
                f" {by_hand}, or put it into the CSV's column host_key"
            )
        with _known_hosts_lock:
            self._files[0].parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._files[0].open("a", encoding="utf-8") as file:
                file.write(f"{self._name} {text}\n")
        print(f"{self._name}: trusting its host key {about}", file=sys.stderr)
        return ""


def _authenticate(transport: paramiko.Transport, options: Options, password: Secret | None) -> None:
    """Logs in with the password or, without one, with a key. Raises AuthenticationException."""
    user = options["user"]
    if password is not None:
        if wanted := transport.auth_password(user, password.reveal()):
            raise paramiko.AuthenticationException(f"it also wants {', '.join(wanted)}")
        return
    problems = ["no key was enough"]
    with contextlib.closing(paramiko.Agent()) as agent:
        for key in _keys(options, agent.get_keys(), problems):
            try:
                wanted = transport.auth_publickey(user, key)
            except paramiko.BadAuthenticationType:
                break  # the machine accepts no keys
            except (paramiko.SSHException, OSError, EOFError):
                if not transport.is_active():
                    raise
                continue  # the key was refused, or the agent does not sign
            if not wanted:
                return
            problems = [f"it also wants {', '.join(wanted)}, which only a person can give"]
            break
    raise paramiko.AuthenticationException("; ".join(problems))


def _keys(
    options: Options, of_agent: Sequence[paramiko.AgentKey], problems: list[str]
) -> Iterator[paramiko.PKey]:
    """Yields the user's keys: those of the files, then the agent's others.

    A file whose public half names a key of the agent is not read, as it may be encrypted.

    Args:
      options: of the machine.
      of_agent: the agent's keys.
      problems: gets a line for each key that cannot be used.
    """
    left = {(key.get_name(), key.get_base64()): key for key in of_agent}
    for text in options.get("identityfile", "").splitlines():
        path = Path(text.replace("%d", "~", 1)).expanduser()
        public = path if path.suffix == ".pub" else path.with_name(f"{path.name}.pub")
        with contextlib.suppress(OSError, ValueError):
            kind, base64, *_ = public.read_text(encoding="ascii").split()
            if (kind, base64) in left:
                yield left.pop((kind, base64))
                continue
        if path == public or not path.is_file():
            continue
        try:
            yield paramiko.PKey.from_path(path)
        except TypeError:  # it is encrypted
            problems.append(f"{path} is encrypted: give it to an agent with ssh-add")
        except (ValueError, OSError, UnsupportedAlgorithm, paramiko.pkey.UnknownKeyType) as error:
            problems.append(f"{path}: {_reason(error)}")
    if options["identitiesonly"] != "yes":
        yield from left.values()
