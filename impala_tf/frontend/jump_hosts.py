"""Carries SSH connections where plain TCP cannot: by a command of the user's, or by jump hosts.

OpenSSH itself logs in to jump hosts, so it uses the user's settings, keys and agents.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence

from impala_tf.frontend.errors import ClusterError

_LOGIN_S = 150.0
"""How long a login may take: sshd gives a person two minutes to answer its questions."""
_NEXT_TRY_S = 10.0
"""How long to wait after a refused login to a jump host: many tries would lock the account."""
_ANSWER_S = 10.0
"""How long an ssh process of this machine may take to answer about its connection."""
_END_S = 2.0


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

    def __init__(self, ssh: Sequence[str]) -> None:
        """Connects to nothing yet.

        Args:
          ssh: the command `ssh` with a configuration that shares connections (ControlMaster).
        """
        self._ssh = ssh
        self._lock = threading.Lock()
        self._hops: dict[str, _Hop] = {}

    def command(self, hops: str, target: str) -> list[str]:
        """Returns the command whose input and output are a connection to an address.

        Args:
          hops: [USER@]HOST[:PORT] of the jump hosts, separated by commas.
          target: host:port, as the last jump host reaches it.

        Raises:
          ClusterError: a jump host cannot be used; names it, and quotes ssh.
        """
        with self._lock:
            hop = self._hops.setdefault(hops, _Hop(self._ssh, hops))
        hop.log_in()
        return [*hop.ssh, "-o", "BatchMode=yes", "-W", target, hop.destination]


class _Hop:
    def __init__(self, ssh: Sequence[str], hops: str) -> None:
        before, _, self._name = hops.rpartition(",")
        self.ssh = [*ssh, *(["-J", before] if before else [])]
        self.destination = f"ssh://{self._name}"
        self._lock = threading.Lock()
        self._problem = ""
        self._next_try_s = 0.0

    def log_in(self) -> None:
        """Opens the connection to a jump host, unless it is open. Raises ClusterError."""
        with self._lock:
            if run_quietly([*self.ssh, "-O", "check", self.destination]) == 0:
                return
            if time.monotonic() > self._next_try_s:
                self._problem = self._connect()
                self._next_try_s = time.monotonic() + _NEXT_TRY_S
            if self._problem:
                raise ClusterError(
                    f"jump host {self._name}: {self._problem}; does ssh {self._name} work?"
                )

    def _connect(self) -> str:
        """Logs in, and leaves ssh in the background. Returns why that failed, or ''."""
        silent = [] if sys.stdin.isatty() and sys.stderr.isatty() else ["-o", "BatchMode=yes"]
        with tempfile.TemporaryFile("w+", errors="replace") as errors:
            try:
                status = subprocess.run(
                    [*self.ssh, *silent, "-f", "-N", self.destination], stdin=subprocess.DEVNULL,
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


def run_quietly(command: Sequence[str]) -> int:
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
