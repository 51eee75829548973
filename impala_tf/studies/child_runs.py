"""Runs that this process starts and waits for: each is `impala train` in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from impala_tf.config import FLAGS, ConfigError, user_commands
from impala_tf.logdir import Logdir
from impala_tf.machine.process_lifetime import PARENT_VARIABLE
from impala_tf.monitoring.returns import scores
from impala_tf.monitoring.status_file import Status, read_status

_IMPALA = (sys.executable, "-m", "impala_tf", "train")


def start(
    flags: Sequence[str], log: Path | None = None, program: Sequence[str] = _IMPALA
) -> subprocess.Popen[bytes]:
    """Starts a run, which ends with this process.

    Args:
      flags: the run's flags.
      log: the file to which the run's output is added. None: the output of this process.
      program: the command before the flags.
    """
    with contextlib.nullcontext() if log is None else log.open("ab") as output:
        return subprocess.Popen(
            [*program, *flags],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=None if output is None else subprocess.STDOUT,
            # In a session of its own, Ctrl-C reaches it only once.
            start_new_session=True,
            env={**os.environ, **_finds_package(), PARENT_VARIABLE: str(os.getpid())},
        )


def refuse_wrong_flags(flags: Sequence[str]) -> None:
    """Exits with a run's own lines and status if it would refuse these flags.

    Args:
      flags: the flags of a run. They are not compared with a run in its folder.
    """
    done = subprocess.run(
        [*_IMPALA, *flags, "--dry_run", "--fresh"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env={**os.environ, **_finds_package()},
        check=False,
    )
    if done.returncode:
        sys.exit(done.returncode)


class SearchedFlag(NamedTuple):
    """A flag to search, and its range, or its choices."""

    name: str
    low: float
    high: float
    is_log: bool
    is_int: bool
    choices: tuple[str, ...] = ()


def read_searched(option: str, text: str) -> SearchedFlag:
    """Returns the flag and the values of NAME=A..B, NAME=log:A..B or NAME=A|B|C.

    Raises:
      ConfigError: the text is wrong; the message says so.
    """
    name, _, values = text.partition("=")
    if name and values and ".." not in values:
        return SearchedFlag(name, 0.0, 0.0, False, False, tuple(values.split("|")))
    low, _, high = values.removeprefix("log:").partition("..")
    flag, is_log, problem = FLAGS.get(name), values.startswith("log:"), ""
    is_int = flag is not None and flag.kind is int
    try:
        bounds = float(low), float(high)
        if is_int and not all(bound.is_integer() for bound in bounds):
            problem = "the flag takes whole numbers"
        elif not bounds[0] < bounds[1] or (is_log and bounds[0] <= 0):
            problem = "the first number must be smaller, and with log: above 0"
    except ValueError:
        problem = "must be NAME=A..B, NAME=log:A..B or NAME=A|B|C"
    if problem:
        raise ConfigError(f"--{option}={text}: {problem}")
    return SearchedFlag(name, *bounds, is_log, is_int)


def claim_folder(flag: str, folder: Path, mine: Mapping[str, Any]) -> None:
    """Notes what the runs in a folder have in common, JSON-able.

    Raises:
      ConfigError: the folder holds runs of something else, or cannot be written.
    """
    path = folder / "study.json"
    # A folder with only this file has no runs: the first one was refused.
    if path.exists() and any(file != path for file in folder.iterdir()):
        theirs = json.loads(path.read_text(encoding="utf-8"))
        if theirs != mine:
            differing = ", ".join(name for name in mine if theirs.get(name) != mine[name])
            raise ConfigError(
                f"--{flag}={folder}: holds runs of another command (it differs in: {differing});"
                " choose another folder, or delete this one"
            )
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(mine), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--{flag}={folder}: cannot write there: {error.strerror}") from None


def status(logdir: Path) -> Status | None:
    """Returns the newest status of a run; None before the first."""
    return read_status(Logdir(logdir).status())


def is_done(logdir: Path) -> bool:
    """Whether a run is done."""
    newest = status(logdir)
    return newest is not None and newest["state"] == "done"


def mean_return(logdir: Path) -> float | None:
    """Returns the last mean return of a run, as in a report; None if there is none yet."""
    _, points = scores(Logdir(logdir).metrics)
    return points[-1][1] if points else None


def _finds_package() -> dict[str, str]:
    """Returns the variable with which a child finds this package, if it is not installed."""
    path = os.pathsep.join(filter(None, (str(user_commands.PROJECT), os.environ.get("PYTHONPATH"))))
    return {"PYTHONPATH": path} if user_commands.IS_CHECKOUT else {}
