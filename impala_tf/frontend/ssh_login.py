"""Opens SSH connections: through jump hosts, with keys, passphrases and passwords."""

from __future__ import annotations

import getpass
import shlex
import socket
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import paramiko

from impala_tf.frontend.errors import ClusterError
from impala_tf.frontend.host_keys import HostKeyError, HostKeys
from impala_tf.frontend.inventory import Secret
from impala_tf.frontend.plan import SSH_PORT, NodeSpec, host_port
from impala_tf.frontend.ssh_authentication import Ask, Login, MoreIsWantedError, TooManyKeysError
from impala_tf.frontend.ssh_settings import SshSettings, lookup, settings_of

CONNECT_TIMEOUT_S = 15.0
_KEEPALIVE_S = 15
_DEAD_PEER_MS = 30_000


def ask_on_terminal(prompt: str) -> Secret | None:
    """Asks for a secret, if somebody can answer."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return None
    return Secret(getpass.getpass(f"{prompt}: ", stream=sys.stderr))


class SshConnector:
    """Logs in to machines. Asks for each secret once, and shares connections to jump hosts.

    Thread-safe.
    """

    def __init__(
        self,
        passwords: Mapping[str, Secret],
        accept_new_host_keys: bool,
        known_hosts: Path | None = None,
        ask: Ask = ask_on_terminal,
    ) -> None:
        """Connects to nothing yet.

        Args:
          passwords: {name of the node: password}, tried after all keys; never shown.
          accept_new_host_keys: whether to trust and remember machines that are not known yet.
          known_hosts: defaults to what ~/.ssh/config says.
          ask: asks the user for a secret, or returns None.
        """
        self._passwords = passwords
        self._accept = accept_new_host_keys
        self._known_hosts = known_hosts
        self._ask = ask
        self._asking = threading.Lock()
        self._answers: dict[str, Secret | None] = {}
        self._jumping = threading.Lock()
        self._jumps: dict[str, _Jump] = {}

    def connect(self, node: NodeSpec) -> paramiko.SSHClient:
        """Logs in. Tries the CSV's key, the agent's, the user's in ~/.ssh, and then the password.

        Raises:
          ClusterError: with the reason in one line. For an unknown or changed host key, it includes
            the fingerprint.
        """
        password = self._passwords.get(node.name)
        return self._log_in(node.name, settings_of(node), node.host_key, password)

    def close(self) -> None:
        """Closes the connections to jump hosts."""
        for jump in self._jumps.values():
            if jump.client is not None:
                jump.client.close()

    def ask_once(self, prompt: str) -> Secret | None:
        """Asks the user for a secret; the same question is asked only once."""
        with self._asking:
            if prompt not in self._answers:
                self._answers[prompt] = self._ask(prompt)
            return self._answers[prompt]

    def ask_each(self, prompt: str) -> Secret | None:
        """Asks the user for what is good for one login only."""
        with self._asking:
            return self._ask(prompt)

    def _log_in(
        self, name: str, settings: SshSettings, host_key: str | None, password: Secret | None
    ) -> paramiko.SSHClient:
        known = (self._known_hosts,) if self._known_hosts else settings.known_hosts
        host_keys = HostKeys(known, settings.host_key_name, host_key, self._accept)
        login = Login(name, settings, password, self.ask_once, self.ask_each, host_keys)
        try:
            try:
                return self._open(settings, host_keys, login)
            except TooManyKeysError:
                login.keys_are_refused = True
                return self._open(settings, host_keys, login)
        except ClusterError as error:  # of a jump host
            raise ClusterError(f"{name}: {error}") from None
        except MoreIsWantedError as error:
            raise ClusterError(f"{name}: {error}") from None
        except paramiko.AuthenticationException as error:
            raise ClusterError(
                f"{name}: login of {settings.username} refused; tried {login.tried()} ({error})"
            ) from None
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise ClusterError(f"{name}: {_why_not(settings, error)}") from None

    def _open(self, settings: SshSettings, host_keys: HostKeys, login: Login) -> paramiko.SSHClient:
        client = paramiko.SSHClient()
        host_keys.prepare(client)
        try:
            client.connect(
                settings.host_key_name,
                port=SSH_PORT,  # the name already has the real one, if it is another
                username=settings.username,
                sock=self._socket(settings),  # type: ignore[arg-type]
                timeout=CONNECT_TIMEOUT_S,
                banner_timeout=CONNECT_TIMEOUT_S,
                auth_timeout=CONNECT_TIMEOUT_S,
                transport_factory=host_keys.transport,
                auth_strategy=login,  # type: ignore[arg-type]
            )
            transport = client.get_transport()
            if transport is not None:
                transport.set_keepalive(_KEEPALIVE_S)
            return client
        except BaseException:
            client.close()
            raise

    def _socket(self, settings: SshSettings) -> object:
        """Returns what carries the connection: a TCP socket, a jump host's channel, a command."""
        if settings.proxy_command is not None:
            words = {"%h": settings.hostname, "%p": str(settings.port), "%r": settings.username}
            command = settings.proxy_command
            for token, value in words.items():
                command = command.replace(token, value)
            return paramiko.ProxyCommand(shlex.join(["sh", "-c", f"exec {command}"]))
        if settings.proxy_jump is not None:
            before, _, last = settings.proxy_jump.rpartition(",")
            transport = self._jump(last, before).get_transport()
            if transport is None:
                raise paramiko.SSHException(f"the connection to {last} was lost")
            there = (settings.hostname, settings.port)
            return transport.open_channel(
                "direct-tcpip", there, ("127.0.0.1", 0), timeout=CONNECT_TIMEOUT_S
            )
        address = (settings.hostname, settings.port)
        connection = socket.create_connection(address, CONNECT_TIMEOUT_S)
        # Otherwise a command on a machine that was switched off waits for a quarter of an hour.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _DEAD_PEER_MS)
        return connection

    def _jump(self, hop: str, before: str) -> paramiko.SSHClient:
        """Returns a connection to a jump host, shared by all machines behind it."""
        with self._jumping:
            jump = self._jumps.setdefault(f"{before},{hop}", _Jump())
        with jump.lock:
            transport = jump.client.get_transport() if jump.client is not None else None
            if jump.client is None or transport is None or not transport.is_active():
                user, _, address = hop.rpartition("@")
                host, port = _split_port(address)
                settings = lookup(host, port, user or None, hop)
                if before:
                    settings = settings._replace(proxy_jump=before)
                jump.client = self._log_in(f"jump host {hop}", settings, None, None)
            return jump.client


class _Jump:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.client: paramiko.SSHClient | None = None


def _split_port(address: str) -> tuple[str, int | None]:
    host, colon, port = address.rpartition(":")
    if colon and port.isdigit() and (":" not in host or host.endswith("]")):
        return host.strip("[]"), int(port)
    return address.strip("[]"), None


def _why_not(settings: SshSettings, error: Exception) -> str:
    address = host_port(settings.hostname, settings.port)
    if isinstance(error, paramiko.BadHostKeyException):
        return (
            f"the host key has CHANGED: known {error.expected_key.fingerprint}, offered "
            f"{error.key.fingerprint}; somebody may be intercepting the connection. If you know "
            f"why it changed, run ssh-keygen -R '{settings.host_key_name}'"
        )
    if isinstance(error, HostKeyError):
        return str(error)
    if isinstance(error, ConnectionRefusedError):
        return f"nothing answers SSH at {address}"
    if isinstance(error, TimeoutError):
        return f"no answer from SSH at {address} within {CONNECT_TIMEOUT_S:g} s"
    return f"SSH at {address}: {error or 'the connection was closed'}"
