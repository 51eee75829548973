"""Carries SSH connections where plain TCP cannot: by a command of the user's, or by jump hosts.

OpenSSH itself logs in to jump hosts, so it uses the user's settings, keys and agents.
"""

from __future__ import annotations

import contextlib
import shlex
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from impala_tf.frontend.errors import ClusterError
from impala_tf.frontend.ssh_settings import is_openssh_home, lookup, openssh

_LOGIN_S = 150.0
"""How long a login may take: sshd gives a person two minutes to answer its questions."""
_PERSIST_S = 60
"""How long an unused connection to a jump host stays open."""
_NEXT_TRY_S = 10.0
"""How long to wait after a refused login to a jump host: many tries would lock the account."""
_LIMITS = {"ConnectTimeout": "15", "ServerAliveInterval": "15", "ServerAliveCountMax": "2"}
_ANSWER_S = 10.0
"""How long an ssh process of this machine may take to answer about its connection."""
_END_S = 2.0


def is_terminal() -> bool:
    """Returns whether somebody can be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()


class ProxySocket(socket.socket):
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


class JumpHosts:
    """Logs in to jump hosts; all machines behind a jump host share its connection. Thread-safe."""

    def __init__(self, accept_new_host_keys: bool, known_hosts: Path | None) -> None:
        """Connects to nothing yet; see `impala_tf.frontend.ssh_login.SshConnector`."""
        self._accept = accept_new_host_keys
        self._known_hosts = known_hosts
        self._lock = threading.Lock()
        self._hops: dict[str, _Hop] = {}
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def command(self, hops: str, target: str) -> list[str]:
        """Returns the command whose input and output are a connection to an address.

        Args:
          hops: [USER@]HOST[:PORT] of the jump hosts, separated by commas.
          target: host:port, as the last jump host reaches it.

        Raises:
          ClusterError: a jump host cannot be used; names it, and quotes ssh.
        """
        with self._lock:
            hop = self._hops.setdefault(hops, _Hop(hops.rpartition(",")[2]))
        with hop.lock:
            if not hop.words:
                hop.words = self._words(hops)
            _log_in(hop, self._accept)
        return [*hop.words, "-o", "BatchMode=yes", "-W", target, hop.destination]

    def close(self) -> None:
        """Closes the connections that were opened for this run."""
        if self._folder is None:
            return
        for hop in self._hops.values():
            if any(self._folder.name in word for word in hop.words):
                _quiet(*hop.words, "-O", "exit", hop.destination)
        self._folder.cleanup()

    def _words(self, hops: str) -> list[str]:
        """Returns the `ssh` command for the last jump host."""
        before, _, last = hops.rpartition(",")
        settings = lookup(f"ssh://{last}", None, None, f"jump host {last}")
        # The user's shared connection is used if there is one, and made otherwise.
        path = settings.control_path or self._own_path()
        options = {"ControlMaster": "auto", "ControlPath": _quoted(path), **_LIMITS}
        options["ClearAllForwardings"] = "yes"  # a LocalForward would occupy the user's port
        if settings.control_persist == "no":
            options["ControlPersist"] = str(_PERSIST_S)
        known_hosts = (self._known_hosts,) if self._known_hosts else settings.known_hosts
        if self._known_hosts or not is_openssh_home():
            options["UserKnownHostsFile"] = " ".join(map(_quoted, known_hosts))
        if self._accept:
            options["StrictHostKeyChecking"] = "accept-new"
        before = before or settings.proxy_jump or ""
        if before:
            text = shlex.join(self.command(before, "HERE")).replace("%", "%%")
            options["ProxyCommand"] = text.replace("HERE", "'[%h]:%p'")
        keys = [] if is_openssh_home() else settings.key_filenames
        return [*openssh(), *(word for key in keys for word in ("-i", str(key))),
                *(word for item in options.items() for word in ("-o", "=".join(item)))]  # fmt: skip

    def _own_path(self) -> str:
        with self._lock:
            if self._folder is None:
                # socket paths must be short
                self._folder = tempfile.TemporaryDirectory(prefix="impala-", dir="/tmp")
            return f"{self._folder.name}/%C"


class _Hop:
    def __init__(self, name: str) -> None:
        self.name = name
        self.destination = f"ssh://{name}"
        self.lock = threading.Lock()
        self.words: list[str] = []
        self.problem = ""
        self.next_try_s = 0.0


def _log_in(hop: _Hop, accept: bool) -> None:
    """Opens the connection to a jump host, unless it is open."""
    if _quiet(*hop.words, "-O", "check", hop.destination) == 0:
        return
    if time.monotonic() > hop.next_try_s:
        hop.problem = _problem(hop, accept)
        hop.next_try_s = time.monotonic() + _NEXT_TRY_S
    if hop.problem:
        raise ClusterError(f"jump host {hop.name}: {hop.problem}")


def _problem(hop: _Hop, accept: bool) -> str:
    """Logs in to a jump host; leaves ssh in the background. Returns why that failed, or ''."""
    silent = [] if is_terminal() else ["-o", "BatchMode=yes"]
    command = [*hop.words, *silent, "-f", "-N", hop.destination]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        text=True, errors="replace",
    )  # fmt: skip
    lines: list[str] = []

    def read() -> None:
        for line in process.stderr or ():
            lines.append(line)
            if is_terminal() or line.startswith("Warning: Permanently added"):
                print(line.rstrip(), file=sys.stderr)

    # In a thread: the ssh in the background may keep the stream open.
    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        status = process.wait(_LOGIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return f"no login within {_LOGIN_S:g} s"
    if status == 0:
        return ""
    reader.join(_END_S)
    text = _last(lines) or f"ssh ended with status {status}"
    if "Host key verification failed" in text and "has changed" not in text and not accept:
        text += "; log in there once with ssh, or pass --accept_new_host_keys"
    return text


def _quiet(*command: str) -> int:
    with contextlib.suppress(subprocess.TimeoutExpired):
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_ANSWER_S
        ).returncode
    return -1


def _last(lines: Sequence[str]) -> str:
    """Returns the last two lines of a program's output, as one line."""
    texts = (line.strip().rstrip(".") for line in lines)
    return "; ".join([text for text in texts if text][-2:])


def _quoted(value: object) -> str:
    return f'"{value}"'
