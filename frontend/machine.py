"""The interface to a machine, and its implementation for this one. For others see `ssh.py`."""

from __future__ import annotations

import dataclasses
import os
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Protocol, cast

from frontend.errors import ClusterError
from frontend.plan import Place

TIMEOUT_S = 60.0
"""How long a command may take by default."""
NOT_FOUND = 127
"""Exit status for a command that does not exist, as in a shell."""


@dataclasses.dataclass(frozen=True)
class Completed:
    """The result of a command."""

    status: int
    stdout: str
    stderr: str

    @property
    def last_line(self) -> str:
        """The last line that it printed, where most programs say what is wrong."""
        lines = (self.stderr.strip() or self.stdout.strip()).splitlines()
        return lines[-1].strip() if lines else f"exit status {self.status}"


class Running(Protocol):
    """A command that is running."""

    def lines(self) -> Iterator[str]:
        """Yields the lines of its output and standard error until it exits."""

    def finish(self) -> int:
        """Closes its standard input, waits until it exits and returns its exit status."""


class Machine(Protocol):
    """A machine. Commands are lists of words, files are absolute paths.

    Every method raises ClusterError if the machine is unreachable.
    """

    place: Place
    """Its `workdir` and `logdir` are absolute."""

    def run(self, argv: Sequence[str], stdin: str = "", timeout_s: float = TIMEOUT_S) -> Completed:
        """Runs a command until it exits. For one that does not exist the status is 127."""

    def start(self, argv: Sequence[str]) -> Running:
        """Starts a command, and keeps its standard input open."""

    def read(self, path: str, offset: int = 0) -> bytes:
        """Returns the content of a file from byte `offset`. Raises FileNotFoundError."""

    def write(self, path: str, content: bytes, mode: int = 0o600) -> None:
        """Replaces a file atomically. A missing folder is created, accessible to its owner only."""

    def close(self) -> None:
        """Closes the connection, if there is one."""


def in_workdir(place: Place, argv: Sequence[str]) -> list[str]:
    """Returns the command that runs `argv` in the project's folder on a machine."""
    return ["env", "-C", place.workdir, *argv]


class LocalMachine:
    """This machine."""

    def __init__(self, place: Place) -> None:
        self.place = place
        # If this runs inside tmux, TMUX names that server. Runs always use the default server.
        self._environment = {k: v for k, v in os.environ.items() if k != "TMUX"}

    def run(self, argv: Sequence[str], stdin: str = "", timeout_s: float = TIMEOUT_S) -> Completed:
        """As in Machine."""
        try:
            done = subprocess.run(
                argv,
                input=stdin,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout_s,
                env=self._environment,
            )
        except FileNotFoundError as error:
            return Completed(NOT_FOUND, "", str(error))
        except subprocess.TimeoutExpired as error:
            raise ClusterError(
                f"{self.place.name}: {argv[0]} took longer than {timeout_s:g} s"
            ) from error
        return Completed(done.returncode, done.stdout, done.stderr)

    def start(self, argv: Sequence[str]) -> Running:
        """As in Machine."""
        return _LocalRunning(
            subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env=self._environment,
            )
        )

    def read(self, path: str, offset: int = 0) -> bytes:
        """As in Machine."""
        with Path(path).open("rb") as file:
            file.seek(offset)
            return file.read()

    def write(self, path: str, content: bytes, mode: int = 0o600) -> None:
        """As in Machine."""
        target = Path(path)
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.{os.getpid()}")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        temporary.chmod(mode)
        temporary.replace(target)

    def close(self) -> None:
        """As in Machine; there is no connection."""


class _LocalRunning:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def lines(self) -> Iterator[str]:
        yield from cast(IO[str], self._process.stdout)

    def finish(self) -> int:
        cast(IO[str], self._process.stdin).close()
        status = self._process.wait()
        cast(IO[str], self._process.stdout).close()
        return status


def is_here(host: str) -> bool:
    """Tells whether a host name or address is this machine's: only those can be bound to."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)
    except OSError:
        return False  # The name is unknown. Connecting to it will report that.
    for family, kind, protocol, _, address in found:
        with socket.socket(family, kind, protocol) as probe:
            try:
                probe.bind(address)
            except OSError:
                continue
            return True
    return False
