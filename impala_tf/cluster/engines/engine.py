"""The interface of an engine, which has machines and runs a job of this project on them.

Every engine is a module of this package, named as in --engine. The record of a run is in the home
of the user who submitted it; see `impala_tf.cluster.record`.
"""

from __future__ import annotations

import importlib
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, cast

from impala_tf.cluster.launch import Differences
from impala_tf.cluster.record import Launch
from impala_tf.cluster.runner import ClusterError
from impala_tf.cluster.watch import MakeDisplay
from impala_tf.config import ENGINE_FLAGS, ConfigError, Given, user_commands
from impala_tf.logdir import moved_aside
from impala_tf.printable import log_printer

OF_THE_LAUNCH = (*ENGINE_FLAGS, "fresh", "dry_run", "detach")
"""The flags of a submission; the run's processes do not get them."""
_TAIL_BYTES = "20000"


class Engine(Protocol):
    """The functions of an engine's module. They print for people, and return an exit status.

    `ssh` has only the first two: what looks after its runs is in `status` and `operate`.
    """

    def render(self, given: Given) -> str:
        """Returns what would be submitted, as text, and touches nothing.

        Raises ConfigError for flags (which have `logdir`) that the engine cannot use.
        """

    def submit(self, given: Given, make_display: MakeDisplay, differences: Differences) -> int:
        """Submits a run; see `impala_tf.cluster.launch.launch`, which shows it until it ends.

        Raises:
          ConfigError: flags, a logdir or a machine that cannot be used. Nothing was submitted.
          ClusterError: the engine refuses the run.
        """

    # The following raise ClusterError if the engine does not answer, or refuses.

    def show_status(self, launch: Launch) -> int:
        """Prints the engine's state of the run, and the state of its processes."""

    def follow_log(self, launch: Launch, name: str, follow: bool) -> int:
        """Prints the end of a process's output, and if `follow`, what comes until Ctrl-C."""

    def stop(self, launch: Launch) -> int:
        """Stops the whole run, with a checkpoint."""


def engine_called(name: str) -> Engine:
    """Returns an engine, which imports packages such as Ray only when it is used."""
    return cast(Engine, importlib.import_module(f"impala_tf.cluster.engines.{name}"))


def make_logdir(given: Given) -> None:
    """Makes the logdir of a submission; with --fresh, first renames the run that is in it."""
    logdir = Path(given["logdir"]).absolute()
    if given["fresh"] and (moved := moved_aside(logdir)):
        print(f"the run that was in {logdir} is now in {moved}")
    logdir.mkdir(parents=True, exist_ok=True)


def print_commands(given: Given, *commands: Sequence[str]) -> None:
    """Prints commands of the launcher for the run that was submitted, such as ["status"]."""
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


def print_log(path: Path, follow: bool) -> int:
    """Prints the end of a log, and if `follow`, what comes until Ctrl-C; returns `tail`'s status.

    Raises ClusterError if there is no such log.
    """
    if not path.is_file():
        raise ClusterError(f"{path}: no output yet")
    more, show = ["-F"] if follow else [], log_printer()
    tail = ["tail", "-c", _TAIL_BYTES, *more, "--", str(path)]
    with subprocess.Popen(tail, stdout=subprocess.PIPE, bufsize=0) as running:
        assert (out := running.stdout) is not None
        for piece in iter(lambda: out.read(65536), b""):
            show(piece)
    return running.returncode
