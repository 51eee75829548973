"""Another machine, over SSH. Host keys are verified. Every command is quoted here and only here."""

from __future__ import annotations

import contextlib
import logging
import posixpath
import secrets
import shlex
import stat
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import paramiko

from frontend.errors import ClusterError
from frontend.machine import TIMEOUT_S, Completed, Running
from frontend.plan import Place, host_port
from frontend.workers import Secret

CONNECT_TIMEOUT_S = 15.0
_KEEPALIVE_S = 15
_CHUNK = 32768
_SYSTEM_KNOWN_HOSTS = Path("/etc/ssh/ssh_known_hosts")

# The caller gets every error as an exception. paramiko would also log it, with a traceback.
logging.getLogger("paramiko").setLevel(logging.CRITICAL)


class SshMachine:
    """Another machine; see `frontend.machine.Machine`. Use `connect` to make one."""

    def __init__(self, place: Place, client: paramiko.SSHClient) -> None:
        """Takes over an open connection. Folders in `place` may be relative to the home folder."""
        self._name = place.name
        self._client = client
        self._lock = threading.Lock()
        with self._errors():
            self._sftp = client.open_sftp()
            home = self._sftp.normalize(".")
        workdir = posixpath.join(home, place.workdir.removeprefix("~/"))
        self.place = replace(place, workdir=workdir, logdir=posixpath.join(workdir, place.logdir))

    def run(self, argv: Sequence[str], stdin: str = "", timeout_s: float = TIMEOUT_S) -> Completed:
        """As in Machine."""
        with self._errors():
            channel = self._channel(argv)
            channel.settimeout(timeout_s)
            errors: list[bytes] = []
            # In a thread: a program blocks when nobody reads one of its two streams.
            reader = threading.Thread(target=_drain_stderr, args=(channel, errors))
            reader.start()
            try:
                channel.sendall(stdin.encode())
                channel.shutdown_write()
                output: list[bytes] = []
                while chunk := channel.recv(_CHUNK):
                    output.append(chunk)
                status = channel.recv_exit_status()
            finally:
                channel.close()
                reader.join()
        return Completed(status, _text(output), _text(errors))

    def start(self, argv: Sequence[str]) -> Running:
        """As in Machine."""
        with self._errors():
            channel = self._channel(argv, merge=True)
        return _SshRunning(channel)

    def read(self, path: str, offset: int = 0) -> bytes:
        """As in Machine."""
        with self._errors(), self._lock, self._sftp.open(path, "rb") as file:
            file.seek(offset)
            return file.read()

    def write(self, path: str, content: bytes, mode: int = 0o600) -> None:
        """As in Machine."""
        temporary = f"{path}.{secrets.token_hex(4)}"
        with self._errors(), self._lock:
            self._make_folders(posixpath.dirname(path))
            with self._sftp.open(temporary, "wbx") as file:
                file.chmod(mode)
                file.write(content)
            self._sftp.posix_rename(temporary, path)

    def close(self) -> None:
        """As in Machine."""
        self._client.close()

    def _make_folders(self, path: str) -> None:
        try:
            if stat.S_ISDIR(self._sftp.stat(path).st_mode or 0):
                return
        except FileNotFoundError:
            self._make_folders(posixpath.dirname(path))
        self._sftp.mkdir(path, 0o700)

    def _channel(self, argv: Sequence[str], merge: bool = False) -> paramiko.Channel:
        transport = self._client.get_transport()
        if transport is None:
            raise paramiko.SSHException("not connected")
        channel = transport.open_session(timeout=CONNECT_TIMEOUT_S)
        channel.set_combine_stderr(merge)
        channel.exec_command(shlex.join(argv))  # the only place where a command becomes text
        return channel

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except TimeoutError as error:
            raise ClusterError(f"{self._name}: no answer in time") from error
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise ClusterError(f"{self._name}: {error or 'the connection was lost'}") from error


class _SshRunning:
    def __init__(self, channel: paramiko.Channel) -> None:
        self._channel = channel
        self._file = channel.makefile("r")

    def lines(self) -> Iterator[str]:
        yield from self._file

    def finish(self) -> int:
        self._channel.shutdown_write()
        status = self._channel.recv_exit_status()
        self._channel.close()
        return status


def connect(
    place: Place,
    password: Secret | None,
    accept_new_host_keys: bool,
    known_hosts: Path | None = None,
) -> SshMachine:
    """Logs in. Tries the CSV's key, the SSH agent's, the user's in ~/.ssh, and then the password.

    Args:
      place: the machine and the user.
      password: tried last; never shown.
      accept_new_host_keys: whether to trust and remember machines that are not known yet.
      known_hosts: defaults to ~/.ssh/known_hosts.

    Raises:
      ClusterError: with the reason in one line. For an unknown or changed host key, it includes the
        fingerprint.
    """
    known_hosts = known_hosts or Path.home() / ".ssh" / "known_hosts"
    client = paramiko.SSHClient()
    for path in (known_hosts, _SYSTEM_KNOWN_HOSTS):
        if path.exists():
            client.load_system_host_keys(str(path))
    client.set_missing_host_key_policy(_Policy(known_hosts, accept_new_host_keys))
    key = Path(place.key_filename).expanduser() if place.key_filename else None
    if key and not key.is_file():
        raise ClusterError(f"{place.name}: key_filename {key}: no such file")
    try:
        client.connect(
            place.ip,
            port=place.ssh_port,
            username=place.ssh_username,
            password=password.reveal() if password else None,
            key_filename=str(key) if key else None,
            timeout=CONNECT_TIMEOUT_S,
            banner_timeout=CONNECT_TIMEOUT_S,
            auth_timeout=CONNECT_TIMEOUT_S,
        )
        transport = client.get_transport()
        if transport is not None:
            transport.set_keepalive(_KEEPALIVE_S)
        return SshMachine(place, client)
    except ClusterError:
        client.close()
        raise
    except (paramiko.SSHException, OSError, EOFError) as error:
        client.close()
        raise ClusterError(f"{place.name}: {_why_not(place, password, error)}") from None


def _why_not(place: Place, password: Secret | None, error: Exception) -> str:
    address = host_port(place.ip, place.ssh_port)
    if isinstance(error, paramiko.BadHostKeyException):
        known = f"[{place.ip}]:{place.ssh_port}" if place.ssh_port != 22 else place.ip
        return (
            f"the host key has CHANGED: known {error.expected_key.fingerprint}, offered "
            f"{error.key.fingerprint}; somebody may be intercepting the connection. If you know "
            f"why it changed, run ssh-keygen -R '{known}'"
        )
    if isinstance(error, _UnknownHostKey):
        return str(error)
    nothing_to_try = "No authentication methods" in str(error)
    if isinstance(error, paramiko.AuthenticationException) or nothing_to_try:
        tried = "your keys" + (" and the CSV's password" if password else "")
        return f"login of {place.ssh_username} refused; tried {tried} ({error})"
    if isinstance(error, paramiko.ssh_exception.NoValidConnectionsError):
        return f"nothing answers SSH at {address}"
    if isinstance(error, TimeoutError):
        return f"no answer from SSH at {address} within {CONNECT_TIMEOUT_S:g} s"
    return f"SSH at {address}: {error}"


class _UnknownHostKey(paramiko.SSHException):
    pass


class _Policy(paramiko.MissingHostKeyPolicy):
    """Refuses unknown machines, or remembers their keys if the user said so."""

    _file_lock = threading.Lock()

    def __init__(self, known_hosts: Path, accept: bool) -> None:
        self._known_hosts = known_hosts
        self._accept = accept

    def missing_host_key(
        self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey
    ) -> None:
        if not self._accept:
            raise _UnknownHostKey(
                f"unknown host key {key.get_name()} {key.fingerprint}; check that it is the "
                "machine's, then log in there once with ssh, or pass --accept_new_host_keys"
            )
        line = paramiko.hostkeys.HostKeyEntry([hostname], key).to_line()
        with self._file_lock:
            self._known_hosts.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._known_hosts.touch(mode=0o600)
            before = self._known_hosts.read_bytes()
            with self._known_hosts.open("a", encoding="utf-8") as file:
                file.write(("" if not before or before.endswith(b"\n") else "\n") + str(line))


def _drain_stderr(channel: paramiko.Channel, into: list[bytes]) -> None:
    while True:
        try:
            chunk = channel.recv_stderr(_CHUNK)
        except TimeoutError:
            continue  # Not an error here: the reader of the other stream decides, and closes both.
        if not chunk:
            return
        into.append(chunk)


def _text(chunks: list[bytes]) -> str:
    return b"".join(chunks).decode(errors="replace")
