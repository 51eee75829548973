"""A machine as the front end uses it, and the one at hand. `ssh.py` has those elsewhere."""

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
"""How long a command may take, unless told otherwise."""
NOT_FOUND = 127
"""Exit status of a command that does not exist, as in a shell."""


@dataclasses.dataclass(frozen=True)
class Completed:
    """A command that has ended."""

    status: int
    stdout: str
    stderr: str

    @property
    def said(self) -> str:
        """The last line that it printed, which is where programs say what is wrong."""
        lines = (self.stderr.strip() or self.stdout.strip()).splitlines()
        return lines[-1].strip() if lines else f"exit status {self.status}"


class Running(Protocol):
    """A command under way."""

    def lines(self) -> Iterator[str]:
        """Yields what it prints, standard error included, until it ends."""

    def finish(self) -> int:
        """Closes its standard input, waits for its end and returns its exit status."""


class Machine(Protocol):
    """A machine: commands as lists of words, files by absolute path.

    Every method raises ClusterError where the machine is lost.
    """

    place: Place
    """With `workdir` and `logdir` made absolute."""

    def run(self, argv: Sequence[str], stdin: str = "", timeout_s: float = TIMEOUT_S) -> Completed:
        """Runs a command to its end. One that does not exist has the status 127."""

    def start(self, argv: Sequence[str]) -> Running:
        """Starts a command whose standard input stays open."""

    def read(self, path: str, offset: int = 0) -> bytes:
        """Returns a file from `offset` on. Raises FileNotFoundError."""

    def write(self, path: str, content: bytes, mode: int = 0o600) -> None:
        """Replaces a file as a whole; makes its folder, for the owner alone, if it is missing."""

    def close(self) -> None:
        """Lets go of the machine."""


def in_workdir(place: Place, argv: Sequence[str]) -> list[str]:
    """Returns the command that runs `argv` in the project's folder of a machine."""
    return ["env", "-C", place.workdir, *argv]


class LocalMachine:
    """This machine."""

    def __init__(self, place: Place) -> None:
        self.place = place
        # A tmux that this runs inside of is the user's own; runs live in the default one.
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
        aside = target.with_name(f".{target.name}.{os.getpid()}")
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        aside.chmod(mode)
        aside.replace(target)

    def close(self) -> None:
        """Has nothing to let go of."""


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
    """Tells whether a name or address is one of this machine's: only those can be bound to."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)
    except OSError:
        return False  # An unknown name is somebody else's; connecting will say what is wrong.
    for family, kind, protocol, _, address in found:
        with socket.socket(family, kind, protocol) as probe:
            try:
                probe.bind(address)
            except OSError:
                continue
            return True
    return False
