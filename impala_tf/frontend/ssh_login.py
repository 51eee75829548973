"""Opens SSH connections: through jump hosts, with keys, passphrases and passwords."""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping
from pathlib import Path

import paramiko

from impala_tf.config.addresses import host_port
from impala_tf.frontend.errors import ClusterError, said_by
from impala_tf.frontend.host_keys import HostKeyError, HostKeys
from impala_tf.frontend.inventory import SSH_PORT, Secret
from impala_tf.frontend.plan import NodeSpec
from impala_tf.frontend.questions import Ask, ask_on_terminal
from impala_tf.frontend.ssh_authentication import Login, MoreIsWantedError, TooManyKeysError
from impala_tf.frontend.ssh_proxy import JumpHosts, ProxySocket
from impala_tf.frontend.ssh_settings import SshSettings, settings_of

CONNECT_TIMEOUT_S = 15.0
_KEEPALIVE_S = 15
_UNKNOWN = (socket.EAI_NONAME, socket.EAI_NODATA)
_DEAD_PEER_MS = 30_000


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
          known_hosts: the file of known hosts. Default: the ones in ~/.ssh/config.
          ask: asks the user for a secret, or returns None.
        """
        self._passwords = passwords
        self._accept = accept_new_host_keys
        self._known_hosts = known_hosts
        self._ask = ask
        self._asking = threading.Lock()
        self._answers: dict[str, Secret | None] = {}
        self._jump_hosts = JumpHosts(accept_new_host_keys, known_hosts)

    def connect(self, node: NodeSpec) -> paramiko.SSHClient:
        """Logs in. Tries the CSV's key, the agent's keys, those in ~/.ssh, and then the password.

        Raises:
          ClusterError: with the reason in one line. For an unknown or changed host key, it includes
            the fingerprint.
        """
        name, settings, password = node.name, settings_of(node), self._passwords.get(node.name)
        known_hosts = (self._known_hosts,) if self._known_hosts else settings.known_hosts
        accept = self._accept or settings.accepts_new
        host_keys = HostKeys(known_hosts, settings.host_key_name, node.host_key, accept)
        login = Login(name, settings, password, self.ask_once, self.ask_each, host_keys)
        try:
            try:
                return self._open(settings, host_keys, login)
            except TooManyKeysError:
                login.keys_are_refused = True
                return self._open(settings, host_keys, login)
        except (ClusterError, MoreIsWantedError) as error:  # ClusterError: of a jump host
            raise ClusterError(f"{name}: {error}") from None
        except paramiko.AuthenticationException as error:
            raise ClusterError(
                f"{name}: login of {settings.username} refused; tried {login.tried()} ({error})"
            ) from None
        # UnicodeError: ~/.ssh/config has a malformed HostName, such as a..b.
        except (paramiko.SSHException, OSError, EOFError, UnicodeError) as error:
            raise ClusterError(f"{name}: {_why_not(node, settings, error)}") from None

    def close(self) -> None:
        """Closes the connections to jump hosts."""
        self._jump_hosts.close()

    def ask_once(self, prompt: str) -> Secret | None:
        """Asks the user for a secret; the same question is asked only once."""
        with self._asking:
            if prompt not in self._answers:
                self._answers[prompt] = self._ask(prompt)
            return self._answers[prompt]

    def ask_each(self, prompt: str) -> Secret | None:
        """Asks the user for a secret that is good for one login only."""
        with self._asking:
            return self._ask(prompt)

    def _open(self, settings: SshSettings, host_keys: HostKeys, login: Login) -> paramiko.SSHClient:
        connection = self._socket(settings)
        client = paramiko.SSHClient()
        try:
            host_keys.prepare(client)
            client.connect(
                settings.host_key_name,
                port=SSH_PORT,  # a port that is not 22 is in the name already
                username=settings.username,
                sock=connection,
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
        except BaseException as error:
            client.close()
            connection.close()
            is_lost = type(error) in (paramiko.SSHException, EOFError) or isinstance(error, OSError)
            if isinstance(connection, ProxySocket) and is_lost and (output := connection.said()):
                raise paramiko.SSHException(output) from None
            raise

    def _socket(self, settings: SshSettings) -> socket.socket:
        """Returns the socket for the connection: TCP, or a command's input and output."""
        address = (settings.hostname, settings.port)
        if settings.proxy_command is not None:
            return ProxySocket(["sh", "-c", f"exec {settings.proxy_command}"], may_ask=True)
        if settings.proxy_jump is not None:
            jump = self._jump_hosts.command(settings.proxy_jump, host_port(*address))
            return ProxySocket(jump, may_ask=False)
        connection = socket.create_connection(address, CONNECT_TIMEOUT_S)
        # Otherwise, a command on a machine that is switched off hangs for a quarter of an hour.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _DEAD_PEER_MS)
        return connection


def _why_not(node: NodeSpec, settings: SshSettings, error: Exception) -> str:
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
    unknown = isinstance(error, socket.gaierror) and error.errno in _UNKNOWN
    if unknown or isinstance(error, UnicodeError):
        if settings.hostname.lower() == node.ssh_host.lower():
            return "no machine of this name is known (ip or ssh_host in the CSV)"
        return f"no machine called {settings.hostname} is known (HostName in ~/.ssh/config)"
    way = f" by way of {settings.proxy_jump}" if settings.proxy_jump else ""
    return f"SSH at {address}{way}: {said_by(error) or 'the connection was closed'}"
