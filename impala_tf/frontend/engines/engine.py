"""The interface of an engine, which has machines and runs a job of this project on them.

Every engine is a module of this package, named as in --engine. The record of a run is in the home
of the user who submitted it; see `impala_tf.frontend.record`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from impala_tf.config import ENGINE_FLAGS, ConfigError, Given, user_commands
from impala_tf.frontend.launch import Differences
from impala_tf.frontend.monitor import MakeDisplay
from impala_tf.frontend.node import state as files
from impala_tf.frontend.record import Launch
from impala_tf.frontend.status import progress
from impala_tf.machine.supervision import OVER, ProcessState
from impala_tf.printable import printable_parts

OF_THE_LAUNCH = (*ENGINE_FLAGS, "fresh", "dry_run", "detach")
"""The flags of a submission; the run's processes do not get them."""


class Engine(Protocol):
    """The functions of an engine's module. They print for people, and return an exit status.

    They may have more arguments, with defaults, for options that some engines lack. A job is the
    engine's own record of a submitted run.
    """

    def render(self, given: Given) -> str:
        """Returns what would be submitted, as text, and touches nothing.

        Raises ConfigError for flags (which have `logdir`) that the engine cannot use.
        """

    def submit(self, given: Given, make_display: MakeDisplay, differences: Differences) -> int:
        """Submits a run; see `impala_tf.frontend.launch.launch`, which shows it until it ends.

        Raises:
          ConfigError: flags, a logdir or a machine that cannot be used. Nothing was submitted.
          ClusterError: the engine refuses the run.
        """

    def job(self, launch: Launch, logdir: Path, /) -> Any:
        """Returns the job of a launch, whose logdir the user calls `logdir`."""

    # The following raise ClusterError if the engine does not answer, or refuses.

    def show_status(self, job: Any, /) -> int:
        """Prints the engine's state of the job, and the state of its processes."""

    def follow_log(self, job: Any, name: str, follow: bool, /) -> int:
        """Prints the end of a process's output, and if `follow`, what comes until Ctrl-C."""

    def stop(self, job: Any, /) -> int:
        """Stops the whole run, with a checkpoint."""


def print_frames(status: str, is_there: bool = True) -> None:
    """Prints a run's state, frames and mean return, and its learner's notes for the user.

    Args:
      status: the text of learner 0's status.json.
      is_there: whether the run's job is running. If not, the learner may have been killed.

    Raises:
      ValueError, KeyError: the text is not a status.
    """
    now = printable_parts(json.loads(status))
    print(progress(now, is_there), *now.get("notes", []), sep="\n")


def print_process(state: ProcessState, host: str = "", seen_unix_s: float | None = None) -> None:
    """Prints the state of a process, and where it is.

    Args:
      state: the process's state, from its supervisor.
      host: the machine of the process.
      seen_unix_s: when that was its state, if the job is no longer running.
    """
    again = f"{state.restarts} restarts" if state.restarts else ""
    at = f"{host:15} " if host else ""
    word, detail = str(state.state), state.detail
    if seen_unix_s is not None and word not in (*OVER, "left"):
        seen_at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seen_unix_s))
        word, detail = f"was {word}", f"last seen {seen_at}"
    print(f"{state.name:12} {word:10} {at}{again} {detail}".rstrip())


def print_processes(logdir: Path, is_there: bool = False) -> None:
    """Prints the states that supervisors have written into a logdir.

    Args:
      logdir: the run's logdir.
      is_there: whether the run's job is running.
    """
    for node in files.read_states(logdir):
        for process in node.processes.values():
            print_process(process, seen_unix_s=None if is_there else node.now_unix_s)


def print_commands(given: Given, *commands: Sequence[str]) -> None:
    """Prints commands of the front end for the run that was submitted, such as ["status"]."""
    for words in commands:
        print(user_commands.frontend(*words, f"--logdir={given['logdir']}"))


def trains_there(logdir: Path, what: str) -> ConfigError:
    """Returns the error that a logdir is in use.

    Args:
      logdir: the run's logdir.
      what: what trains there, such as "a run on Ray".
    """
    stop = user_commands.frontend("stop", f"--logdir={logdir}")
    return ConfigError(f"--logdir={logdir}: {what} trains there; stop it first: {stop}")
