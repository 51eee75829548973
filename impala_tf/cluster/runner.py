"""A machine that runs commands: this one or, over SSH, another (`remote.py`).

A machine only has to run commands: files travel as their standard input and output.
"""

from __future__ import annotations

import abc
import contextlib
import json
import os
import posixpath
import secrets
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from impala_tf.cluster.node import probe
from impala_tf.cluster.node.state import REFUSED
from impala_tf.cluster.plan import NodeSpec
from impala_tf.config import this_machine, user_commands
from impala_tf.config.plug_ins import FOLDERS_VARIABLE
from impala_tf.printable import printable

TIMEOUT_S = 60.0
"""How long a command may take by default."""
NO_WORKDIR = 125
"""Exit status if the folder to run the command in does not exist."""

# Makes $2 the current folder, and the rest of its arguments a command. A line with $1 separates the
# command's own output from what a login shell prints before it (some .bashrc do).
_WRAPPER = f"""
printf '%s\\n' "$1"
if [ -n "$2" ]; then cd -- "$2" || exit {NO_WORKDIR}; fi
shift 2
case "$1" in "~/"*) c=$HOME/${{1#"~/"}}; shift; set -- "$c" "$@";; esac
"""
# The command also ends when its standard input does: without a terminal, sshd keeps it running when
# the connection is lost.
_UNTIL_INPUT_ENDS = """
exec 3<&0; setsid "$@" </dev/null 3<&- & p=$!
(cat <&3; kill -s TERM -- -$p) >/dev/null 2>&1 & w=$!
wait $p; s=$?; kill $w 2>/dev/null; exit $s
"""

# Imports the agent from the folder of the run's code. The folder of a run that has ended may be
# gone; then the project in the workdir is used.
_AGENT = """
import os, runpy, sys
code = os.path.abspath(sys.argv.pop(1))
sys.path[0] = code if os.path.isdir(code) else os.getcwd()
runpy.run_module("impala_tf.cluster.node.tasks", run_name="__main__", alter_sys=True)
"""
_MODULE = "impala_tf.cluster.node.tasks"
PROBE = "".join(Path(each).read_text() for each in (this_machine.__file__, probe.__file__))
"""The program that looks at a machine, and all that it needs, as text."""
# A user's file in the current folder, such as random.py, must not hide Python's own module.
_PYTHONS_OWN_FIRST = "import sys; sys.path.sort(key=lambda folder: folder == ''); "


class ClusterError(Exception):
    """Machines that cannot be used: one line per problem. The command exits with status 1."""

    def __init__(self, problems: list[str] | str) -> None:
        listed = [problems] if isinstance(problems, str) else problems
        self.problems = [printable(line) for line in listed]  # other machines have a say in them
        super().__init__("\n".join(self.problems))


class NotSetUpError(ClusterError):
    """A machine cannot run the project's code: `impala cluster setup` has to install something."""


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
        """The line of its output that says what is wrong: for most programs, the last one."""
        printed = (self.stderr.strip() or self.stdout.strip()).decode(errors="replace")
        # The last one of tar only says that there were errors.
        lines = [line for line in printed.splitlines() if "due to previous errors" not in line]
        return lines[-1].strip() if lines else f"exit status {self.status}"


class Running:
    """A command that is running."""

    def __init__(self, stdin: IO[bytes], output: IO[bytes], wait: Callable[[], int]) -> None:
        self.output = output
        """Its standard output and its errors."""
        self._stdin = stdin
        self._wait = wait

    def finish(self) -> int:
        """Ends it, unless it has exited; returns its exit status."""
        with contextlib.suppress(OSError):
            self._stdin.close()
        return self._wait()


class CommandRunner(abc.ABC):
    """A machine. Every method raises ClusterError if the machine is unreachable."""

    def __init__(self, node: NodeSpec) -> None:
        self.node = node
        self.name = node.name

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
        mark = secrets.token_hex(8)
        command = self._wrapped('exec "$@"', mark, in_workdir, argv)
        done = self._run(command, stdin, timeout_s)
        _, begun, output = done.stdout.partition(f"{mark}\n".encode())
        if not begun:
            raise self._not_begun(done)
        return done._replace(stdout=output)

    def start(self, argv: Sequence[str], in_workdir: bool = True) -> Running:
        """Starts a command that reads nothing. It ends when it is finished or the connection is."""
        mark = secrets.token_hex(8)
        running = self._start(self._wrapped(_UNTIL_INPUT_ENDS, mark, in_workdir, argv))
        printed = b""
        for line in iter(running.output.readline, b""):
            if line.endswith(f"{mark}\n".encode()):
                return running
            printed += line
        raise self._not_begun(Completed(running.finish(), printed, b""))

    def close(self) -> None:  # noqa: B027, a LocalRunner has nothing to close
        """Closes the connection, if there is one."""

    def _wrapped(self, how: str, mark: str, in_workdir: bool, argv: Sequence[str]) -> list[str]:
        folder = self.node.workdir if in_workdir else ""
        return ["sh", "-c", _WRAPPER + how, "sh", mark, folder, *argv]

    def _not_begun(self, done: Completed) -> ClusterError:
        shell = "its login shell starts no command as a POSIX shell does"
        return ClusterError(f"{self.name}: {shell}: {done.last_line}")

    @abc.abstractmethod
    def _run(self, command: list[str], stdin: bytes, timeout_s: float) -> Completed:
        """Runs a wrapped command; the arguments and errors are those of `run`."""

    @abc.abstractmethod
    def _start(self, command: list[str]) -> Running:
        """Starts a wrapped command."""


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
            word = command[6]  # the first word of the command that was wrapped
            raise ClusterError(f"{self.node.name}: {word}: longer than {timeout_s:g} s") from error
        return Completed(done.returncode, done.stdout, done.stderr)

    def _start(self, command: list[str]) -> Running:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=self._environment,
            start_new_session=True,
        )
        stdin, output = cast(IO[bytes], process.stdin), cast(IO[bytes], process.stdout)
        return Running(stdin, output, process.wait)


def ask_agent(
    runner: CommandRunner, task: str, question: Mapping[str, Any], timeout_s: float = TIMEOUT_S
) -> Any:
    """Runs a task of `impala_tf.cluster.node.tasks` on a machine; returns its answer.

    Every task also gets "logdir" and "node".

    Raises:
      NotSetUpError: the machine has no project folder, interpreter or package that it needs.
      ClusterError: the machine is unreachable or the task fails.
    """
    node = runner.node
    module: Sequence[str] = ("-m", _MODULE)
    if node.code:
        module = ("-c", _AGENT, node.code)
    elif node.is_local:
        module = user_commands.module(_MODULE)
    message = {"logdir": node.logdir, "node": node.id, **question}
    done = runner.run([node.python, *module, task], json.dumps(message).encode(), timeout_s)
    if done.status == NO_WORKDIR:
        raise NotSetUpError(f"{node.name}: {node.workdir}: no such folder")
    if done.status != 0:
        kind = ClusterError if done.status == REFUSED else NotSetUpError
        raise kind(f"{node.name}: {done.last_line}")
    return json.loads(done.stdout)


def run_probe(runner: CommandRunner, task: str, question: Any) -> Any:
    """Runs a task of `node/probe.py` on a machine; returns its answer. Raises ClusterError."""
    command = probe_command(runner.node, task, question)
    done = runner.run(command, in_workdir=False)
    if done.status != 0:
        raise ClusterError(f"{runner.name}: cannot run {command[0]}: {done.last_line}")
    return json.loads(done.stdout)


def probe_command(node: NodeSpec, task: str, question: Any) -> list[str]:
    """Returns the command, for the home folder, that runs a task of `node/probe.py`."""
    python = node.python
    if "/" in python and not python.startswith("~/"):
        python = posixpath.join(node.workdir, python)
    # The program itself is sent: machines without the project must be able to run it.
    program = f"{_PYTHONS_OWN_FIRST}exec({PROBE!r})"
    return [python, "-c", program, task, json.dumps(question)]
