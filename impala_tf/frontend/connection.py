"""Runs commands on a machine: the interface, and its implementation for this one; see `ssh.py`.

A machine only has to run commands: files travel as their standard input and output.
"""

from __future__ import annotations

import abc
import contextlib
import json
import os
import posixpath
import re
import secrets
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol, cast

from impala_tf.config import user_commands
from impala_tf.config.plug_ins import FOLDERS_VARIABLE
from impala_tf.frontend.errors import ClusterError, NoCodeError, NotSetUpError
from impala_tf.frontend.node.state import REFUSED
from impala_tf.frontend.plan import NodeSpec

TIMEOUT_S = 60.0
"""How long a command may take by default."""
_QUOTED = 80  # characters
_FULL, _ERRORS_BEFORE = "No space left on device", "due to previous errors"
_SHELL = re.compile(r"^[0-9a-f]{16}: (\d+: )?")  # the shell's name for itself: the mark
NO_WORKDIR = 125
"""Exit status if the folder to run the command in does not exist."""
NO_CODE = 123
"""Exit status if a launch has to send the run's code first."""

# Runs "$@" in the folder "$1". A line with "$0" separates the command's own output from what a
# login shell prints before it (some .bashrc do).
_WRAPPER = f"""
printf '%s\\n' "$0"
if [ -n "$1" ]; then cd -- "$1" || exit {NO_WORKDIR}; fi
shift
case "$1" in "~/"*) c=$HOME/${{1#"~/"}}; shift; set -- "$c" "$@";; esac
exec "$@"
"""

# Imports the agent from the folder of the run's code. The folder of a run that has ended may be
# gone; then the project in the workdir is used.
_AGENT = f"""
import os, runpy, sys
code, task = os.path.abspath(sys.argv.pop(1)), sys.argv[1]
if not os.path.isdir(code):
    if task == "check":
        sys.exit({NO_CODE})
    code = os.getcwd()
sys.path[0] = code
runpy.run_module("impala_tf.frontend.node.agent", run_name="__main__", alter_sys=True)
"""
_MODULE = "impala_tf.frontend.node.agent"


class Completed(NamedTuple):
    """The result of a command."""

    status: int
    stdout: bytes
    stderr: bytes

    @property
    def text(self) -> str:
        """Its standard output."""
        return self.stdout.decode(errors="replace")

    @property
    def last_line(self) -> str:
        """The last line of its output, where most programs say what is wrong."""
        printed = self.stderr.strip() or self.stdout.strip()
        return cause(printed.decode(errors="replace")) or f"exit status {self.status}"


def cause(printed: str) -> str:
    """Returns the line of a failed command's output that says what is wrong; '' if it has none."""
    # tar has a line for each file, and a last one that only says that there were errors.
    lines = [line for line in printed.strip().splitlines() if not line.endswith(_ERRORS_BEFORE)]
    line = next((line for line in lines if _FULL in line), lines[-1] if lines else printed)
    return _SHELL.sub("", line.strip())


class Stream(Protocol):
    """A command that is running."""

    def chunks(self) -> Iterator[bytes]:
        """Yields its output and standard error until it exits."""

    def write(self, data: bytes) -> None:
        """Sends bytes to its standard input."""

    def close_input(self) -> None:
        """Ends its standard input."""

    def finish(self) -> int:
        """Closes its standard input, waits until it exits and returns its exit status."""


class CommandRunner(abc.ABC):
    """A machine. Every method raises ClusterError if the machine is unreachable."""

    def __init__(self, node: NodeSpec) -> None:
        self.node = node

    def run(
        self,
        argv: Sequence[str],
        stdin: bytes = b"",
        timeout_s: float = TIMEOUT_S,
        in_workdir: bool = True,
    ) -> Completed:
        """Runs a command until it exits.

        Args:
          argv: the command's words; no shell interprets them. ~/ at the beginning of the first
            word is the home folder.
          stdin: the command's standard input.
          timeout_s: how long it may be silent.
          in_workdir: whether to run it in the project's folder, else in the home folder.
        """
        command, mark = self._wrapped(argv, in_workdir)
        done = self._run(command, stdin, timeout_s)
        _, begun, output = done.stdout.partition(mark)
        if not begun:
            shell = "its login shell starts no command as a POSIX shell does"
            raise ClusterError(f"{self.node.name}: {shell}: {done.last_line}")
        return done._replace(stdout=output)

    def stream(self, argv: Sequence[str], in_workdir: bool = True) -> Stream:
        """Starts a command, and keeps its standard input open."""
        return self._stream(*self._wrapped(argv, in_workdir))

    def close(self) -> None:  # noqa: B027, a LocalRunner has nothing to close
        """Closes the connection, if there is one."""

    def _wrapped(self, argv: Sequence[str], in_workdir: bool) -> tuple[list[str], bytes]:
        """Returns the command to run, and the line that precedes its output."""
        mark = secrets.token_hex(8)
        folder = self.node.workdir if in_workdir else ""
        return ["sh", "-c", _WRAPPER, mark, folder, *argv], f"{mark}\n".encode()

    @abc.abstractmethod
    def _run(self, command: list[str], stdin: bytes, timeout_s: float) -> Completed:
        """Runs a wrapped command; the arguments and errors are those of `run`."""

    @abc.abstractmethod
    def _stream(self, command: list[str], mark: bytes) -> Stream:
        """Starts a wrapped command, whose output begins after the line `mark`."""


def until_input_ends(argv: Sequence[str]) -> list[str]:
    """Returns a command that also ends when its standard input does.

    Without a terminal, sshd keeps a command running when the connection is lost.
    """
    script = (
        'exec 3<&0; setsid "$@" </dev/null 3<&- & p=$!; '
        "(cat <&3; kill -s TERM -- -$p) >/dev/null 2>&1 & w=$!; "
        "wait $p; s=$?; kill $w 2>/dev/null; exit $s"
    )
    return ["sh", "-c", script, "sh", *argv]


PYTHONS_OWN_FIRST = "import sys; sys.path.sort(key=lambda folder: folder == ''); "
"""The beginning of a program for `python -c`, which searches the current folder first: a user's
file there, such as random.py, must not hide Python's own module of that name.
"""


def python_of(node: NodeSpec) -> str:
    """Returns the interpreter of a machine, for a command in the home folder."""
    if "/" not in node.python or node.python.startswith("~/"):
        return node.python
    return posixpath.join(node.workdir, node.python)


def ask_agent(
    runner: CommandRunner, task: str, question: Mapping[str, Any], timeout_s: float = TIMEOUT_S
) -> Any:
    """Runs a task of `impala_tf.frontend.node.agent` on a machine; returns its answer.

    Every task also gets "logdir" and "node".

    Raises:
      NoCodeError: "check" finds no folder with the run's code.
      NotSetUpError: the machine has no project folder, interpreter or package that it needs.
      ClusterError: the machine is unreachable or the task fails.
    """
    node = runner.node
    module: Sequence[str] = ("-m", _MODULE)
    if node.code:
        module = ("-c", _AGENT, node.code)
    elif node.is_local:
        module = user_commands.module(_MODULE)
    command = [node.python, *module, task]
    message = {"logdir": node.logdir, "node": node.id, **question}
    done = runner.run(command, json.dumps(message).encode(), timeout_s)
    if done.status == NO_WORKDIR:
        raise NotSetUpError(f"{node.name}: {node.workdir}: no such folder")
    if done.status == NO_CODE:
        raise NoCodeError(f"{node.name}: {node.code}: no such folder")
    if done.status == REFUSED:
        raise ClusterError(f"{node.name}: {done.last_line}")
    if done.status != 0:
        raise NotSetUpError(f"{node.name}: {done.last_line}")
    return answer_of(node, done)


def answer_of(node: NodeSpec, done: Completed) -> Any:
    """Returns what a Python program of this project answered.

    Raises:
      ClusterError: it printed something else: `python` may be a script that prints lines of its
        own.
    """
    try:
        return json.loads(done.stdout)
    except ValueError as error:
        first = done.text.strip().partition("\n")[0][:_QUOTED]
        reason = f"{node.python} printed {first!r} where an answer was expected"
        raise ClusterError(f"{node.name}: {reason}") from error


class LocalRunner(CommandRunner):
    """This machine."""

    def __init__(self, node: NodeSpec) -> None:
        super().__init__(node)
        # If this runs inside tmux, TMUX names that server. Runs always use the default server.
        self._environment = {k: v for k, v in os.environ.items() if k != "TMUX"}
        # Processes of a run on this machine must find the user's modules where this command does.
        paths = [os.environ.get(name, "") for name in (FOLDERS_VARIABLE, "PYTHONPATH")]
        folders = [".", *filter(None, os.pathsep.join(paths).split(os.pathsep))]
        absolute = [str(Path(folder).absolute()) for folder in folders]
        self._environment[FOLDERS_VARIABLE] = os.pathsep.join(absolute)

    def _run(self, command: list[str], stdin: bytes, timeout_s: float) -> Completed:
        try:
            done = subprocess.run(
                command, input=stdin, capture_output=True, timeout=timeout_s, env=self._environment
            )
        except subprocess.TimeoutExpired as error:
            word = command[5]  # the first word of the command that was wrapped
            raise ClusterError(f"{self.node.name}: {word}: longer than {timeout_s:g} s") from error
        return Completed(done.returncode, done.stdout, done.stderr)

    def _stream(self, command: list[str], mark: bytes) -> Stream:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env=self._environment, start_new_session=True,
        )  # fmt: skip
        return _LocalStream(process, mark)


class _LocalStream:
    def __init__(self, process: subprocess.Popen[bytes], mark: bytes) -> None:
        self._process = process
        self._output = cast(IO[bytes], process.stdout)
        self._mark = mark

    def chunks(self) -> Iterator[bytes]:
        return without_mark(iter(lambda: os.read(self._output.fileno(), 65536), b""), self._mark)

    def write(self, data: bytes) -> None:
        stdin = cast(IO[bytes], self._process.stdin)
        with contextlib.suppress(BrokenPipeError):  # the command has exited; its output says why
            stdin.write(data)
            stdin.flush()

    def close_input(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            cast(IO[bytes], self._process.stdin).close()

    def finish(self) -> int:
        self.close_input()
        status = self._process.wait()
        self._output.close()
        return status


def without_mark(chunks: Iterator[bytes], mark: bytes) -> Iterator[bytes]:
    """Yields the output after the mark; all of it if the command never started."""
    before = b""
    for chunk in chunks:
        before += chunk
        _, separator, output = before.partition(mark)
        if separator:
            if output:
                yield output
            yield from chunks
            return
    if before:
        yield before


def lines_of(chunks: Iterator[bytes]) -> Iterator[str]:
    """Yields the lines of an output."""
    partial = b""
    for chunk in chunks:
        *whole, partial = (partial + chunk).split(b"\n")
        yield from (line.decode(errors="replace") for line in whole)
    if partial:
        yield partial.decode(errors="replace")
