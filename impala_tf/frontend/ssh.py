"""Runs commands on another machine, over SSH."""

from __future__ import annotations

import contextlib
import logging
import shlex
import threading
from collections.abc import Iterator, Sequence

import paramiko

from impala_tf.frontend.connection import CommandRunner, Completed, Stream, without_mark
from impala_tf.frontend.errors import ClusterError, said_by
from impala_tf.frontend.plan import NodeSpec
from impala_tf.frontend.ssh_login import CONNECT_TIMEOUT_S, SshConnector

_CHUNK = 32768
_PIECE = 1 << 17
_LOST = "the connection was lost"

# Callers get every error as an exception; paramiko would also log it, with a traceback.
logging.getLogger("paramiko").setLevel(logging.CRITICAL)


class SshRunner(CommandRunner):
    """Another machine.

    If the connection is lost, the running command fails, and the next one reconnects.
    """

    def __init__(self, node: NodeSpec, connector: SshConnector) -> None:
        """Logs in. Raises ClusterError if that fails."""
        super().__init__(node)
        self._connector = connector
        self._lock = threading.Lock()
        self._transport: paramiko.Transport | None = connector.connect(node)

    def _run(self, command: list[str], stdin: bytes, timeout_s: float) -> Completed:
        with self._errors(timeout_s):
            channel = self._channel(command)
            channel.settimeout(timeout_s)
            errors: list[bytes] = []
            # In a thread: a program blocks if nobody reads one of its two output streams.
            reader = threading.Thread(target=_drain_stderr, args=(channel, errors), daemon=True)
            reader.start()
            try:
                self._send(channel, stdin)
                output = b"".join(iter(lambda: channel.recv(_CHUNK), b""))
                status = _status(channel)
            finally:
                channel.close()
                reader.join()
        return Completed(status, output, b"".join(errors))

    def _stream(self, command: list[str], mark: bytes) -> Stream:
        with self._errors(CONNECT_TIMEOUT_S):
            channel = self._channel(command, merge=True)
        return _SshStream(self.node.name, channel, mark)

    def close(self) -> None:
        """Ends the connection; the next command reconnects."""
        with self._lock:
            self._disconnect()

    def _channel(self, argv: Sequence[str], merge: bool = False) -> paramiko.Channel:
        with self._lock:
            transport = self._transport
            if transport is None or not transport.is_active():
                self._disconnect()
                transport = self._transport = self._connector.connect(self.node)
        channel = transport.open_session(timeout=CONNECT_TIMEOUT_S)
        channel.settimeout(CONNECT_TIMEOUT_S)
        channel.set_combine_stderr(merge)
        channel.exec_command(shlex.join(argv))  # the only place where a command becomes text
        channel.settimeout(None)
        return channel

    def _send(self, channel: paramiko.Channel, stdin: bytes) -> None:
        try:
            _send_all(channel, stdin)
            channel.shutdown_write()
        except OSError:
            if not channel.exit_status_ready():
                raise
            # The command has exited without reading all of its input.

    def _disconnect(self) -> None:
        if self._transport is not None:
            self._transport.close()
            self._transport = None

    @contextlib.contextmanager
    def _errors(self, timeout_s: float) -> Iterator[None]:
        try:
            with _named_errors(self.node.name):
                yield
        except ClusterError as error:
            self.close()  # the machine may be gone; only a new connection can tell
            if isinstance(error.__cause__, TimeoutError):
                reason = f"no answer within {timeout_s:g} s"
                raise ClusterError(f"{self.node.name}: {reason}") from error
            raise


@contextlib.contextmanager
def _named_errors(name: str) -> Iterator[None]:
    """Turns a connection's errors into a ClusterError that names the machine."""
    try:
        yield
    except (paramiko.SSHException, OSError, EOFError) as error:
        raise ClusterError(f"{name}: {said_by(error).rstrip('.') or _LOST}") from error


class _SshStream:
    def __init__(self, name: str, channel: paramiko.Channel, mark: bytes) -> None:
        self._name = name
        self._channel = channel
        self._mark = mark

    def chunks(self) -> Iterator[bytes]:
        with _named_errors(self._name):
            yield from without_mark(iter(lambda: self._channel.recv(_CHUNK), b""), self._mark)

    def write(self, data: bytes) -> None:
        with _named_errors(self._name):
            _send_all(self._channel, data)

    def close_input(self) -> None:
        with contextlib.suppress(OSError):
            self._channel.shutdown_write()

    def finish(self) -> int:
        with contextlib.closing(self._channel), _named_errors(self._name):
            self._channel.shutdown_write()
            return _status(self._channel)


def _send_all(channel: paramiko.Channel, data: bytes) -> None:
    """Sends in pieces, because paramiko copies all remaining data after every packet of 32 kB."""
    view = memoryview(data)
    for start in range(0, len(view), _PIECE):
        channel.sendall(bytes(view[start : start + _PIECE]))


def _status(channel: paramiko.Channel) -> int:
    status = channel.recv_exit_status()
    if status == -1:  # paramiko's answer if the connection ended before the command did
        raise EOFError(_LOST)
    return status


def _drain_stderr(channel: paramiko.Channel, into: list[bytes]) -> None:
    while True:
        try:
            chunk = channel.recv_stderr(_CHUNK)
        except TimeoutError:
            continue  # no error here: the reader of the other stream decides, and closes both
        if not chunk:
            return
        into.append(chunk)
