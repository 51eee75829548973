"""The interface of an engine, which has machines and runs a job of this project on them.

Every engine is a module of this package, named as in --engine. It keeps its record of a run in
LOGDIR/ENGINE.json (SSH: cluster.json), on the machine where the run was submitted.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from impala_tf.config import ENGINE_FLAGS, ConfigError, Given, user_commands
from impala_tf.frontend.launch import Differences
from impala_tf.frontend.monitor import MakeDisplay
from impala_tf.logdir import write_atomically
from impala_tf.machine.supervision import OVER, ProcessState
from impala_tf.printable import printable_parts

OF_THE_LAUNCH = (*ENGINE_FLAGS, "fresh", "dry_run", "detach")
"""The flags of a submission; the run's processes do not get them."""


class Hooks(NamedTuple):
    """Functions of higher packages for engines; see `impala_tf.frontend.launch.launch`."""

    make_display: MakeDisplay
    differences: Differences


_FINAL = ("stopped", "done", "failed")  # states of a learner: `monitoring.status`
Job = TypeVar("Job")
"""An engine's record of a submitted run."""


class Engine(Protocol[Job]):
    """The functions of an engine's module. They print for people, and return an exit status.

    They may have more arguments, with defaults, for options that some engines lack.
    """

    def render(self, given: Given) -> str:
        """Returns what would be submitted, as text, and touches nothing.

        Args:
          given: the flags, with `logdir`.

        Raises:
          ConfigError: flags that the engine cannot use.
        """

    def submit(self, given: Given, hooks: Hooks) -> int:
        """Submits a run.

        Args:
          given: the flags, with `logdir`.
          hooks: for engines that show the run until it ends.

        Raises:
          ConfigError: flags, a logdir or a machine that cannot be used. Nothing was submitted.
          ClusterError: the engine refuses the run.
        """

    def find(self, logdir: str | Path | None, /) -> Job | None:
        """Returns the job that was submitted with a logdir; None if there is none.

        Raises:
          ConfigError: its record is damaged.
        """

    def show_status(self, job: Job, /) -> int:
        """Prints the engine's state of the job, and the state of its processes.

        Raises:
          ClusterError: the engine does not answer.
        """

    def follow_log(self, job: Job, name: str, follow: bool, /) -> int:
        """Prints the end of a process's output.

        Args:
          job: the run's job.
          name: the process, such as learner-0.
          follow: whether to keep printing until Ctrl-C.

        Raises:
          ClusterError: there is no such output.
        """

    def stop(self, job: Job, /) -> int:
        """Stops the whole run, with a checkpoint.

        Raises:
          ClusterError: the engine refuses.
        """


def print_frames(status: str, is_there: bool = True) -> None:
    """Prints a run's state and frames, and its learner's notes for the user.

    Args:
      status: the text of learner 0's status.json.
      is_there: whether the run's job is running. If not, the learner may have been killed.

    Raises:
      ValueError, KeyError: the text is not a status.
    """
    now = printable_parts(json.loads(status))
    frames = f"{now['environment_frames']:,} of {now['total_environment_frames']:,}"
    was = "" if is_there or now["state"] in _FINAL else "was "
    print(f"{was}{now['state']}: {frames} frames", *now.get("notes", []), sep="\n")


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


def record_path(logdir: str | Path, engine: str) -> Path:
    """Returns the path of an engine's record of a run."""
    return Path(logdir) / f"{engine}.json"


def write_record(logdir: Path, engine: str, record: Mapping[str, Any]) -> None:
    """Writes the record that `read_record` reads. Raises OSError if that fails."""
    write_atomically(record_path(logdir, engine), json.dumps(record) + "\n")


def read_record(
    logdir: str | Path | None, engine: str, job_of: Callable[[Path, Any], Job]
) -> Job | None:
    """Returns an engine's record of the run in a logdir; None if there is none.

    Args:
      logdir: the run's logdir, or None.
      engine: the engine's name.
      job_of: makes the job from the logdir and the JSON record. Raises ValueError, LookupError,
        TypeError or AttributeError if the record has another form.

    Raises:
      ConfigError: the record is damaged.
    """
    if logdir is None or not (path := record_path(logdir, engine)).exists():
        return None
    try:
        return job_of(Path(logdir), json.loads(path.read_text()))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path}: not a record of a job ({error})") from error
