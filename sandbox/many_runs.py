"""For scripts that start runs: train, resume, stop cleanly, and read what a run has written."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

PROJECT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PROJECT))

from impala_tf.config import FLAGS  # noqa: E402
from impala_tf.logdir import Logdir  # noqa: E402
from impala_tf.machine.process_lifetime import PARENT_VARIABLE, StopRequest  # noqa: E402
from impala_tf.monitoring.returns import scores  # noqa: E402
from impala_tf.monitoring.status_file import Status, read_status  # noqa: E402

_POLL_S = 0.25
_LAST_LINES = 15
SCRIPT = PROJECT / "run_experiment.py"


def start(
    flags: Sequence[str], log: Path | None = None, checkout: Path = PROJECT
) -> subprocess.Popen[bytes]:
    """Starts run_experiment.py; the run ends with this process.

    Args:
      flags: the flags for run_experiment.py.
      log: the file to which the run's output is added. None: the output of this process.
      checkout: the folder of the project's code.
    """
    with contextlib.nullcontext() if log is None else log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, str(checkout / SCRIPT.name), *flags],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=None if output is None else subprocess.STDOUT,
            # In a session of its own, Ctrl-C reaches it only once.
            start_new_session=True,
            env={**os.environ, PARENT_VARIABLE: str(os.getpid())},
        )


def run_experiment(flags: Sequence[str], stop: StopRequest, log: Path | None = None) -> int:
    """Runs run_experiment.py to its end; returns its exit status.

    When this process is asked to stop, so is the run, which then writes a checkpoint.

    Args:
      flags, log: see `start`.
      stop: the installed request.
    """
    run = start(flags, log)
    stop.on_request(run.terminate)
    while run.poll() is None:
        time.sleep(_POLL_S)
    return run.returncode


def wait_for(
    condition: Callable[[], bool],
    process: subprocess.Popen[bytes],
    log: Path,
    limit_s: float = 120.0,
) -> float:
    """Waits until a condition holds; returns the seconds it took.

    If the process ends first, or the limit is over, exits with 1 and the log's last lines.

    Args:
      condition: tells whether to stop waiting.
      process: the process without which the condition never holds.
      log: the file with the process's output.
      limit_s: the longest wait.
    """
    began = time.monotonic()
    while not condition():
        waited_s = time.monotonic() - began
        if process.poll() is not None or waited_s > limit_s:
            status = process.returncode
            why = f"no progress in {limit_s:g} s" if status is None else f"ended with {status}"
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LAST_LINES:]
            sys.exit("\n".join([f"{why}; the end of {log.name}:", *lines]))
        time.sleep(0.1)
    return time.monotonic() - began


def refuse_wrong_flags(flags: Sequence[str]) -> None:
    """Exits with 2 and the run's own lines if run_experiment.py refuses these flags.

    Args:
      flags: the flags of a run. They are not compared with a run in its folder.
    """
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *flags, "--dry_run", "--fresh"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        check=False,
    )
    if done.returncode:
        sys.exit(done.returncode)


class Range(NamedTuple):
    """A flag to search, and its range."""

    name: str
    low: float
    high: float
    is_log: bool
    is_int: bool


def read_range(text: str) -> Range:
    """Returns the flag and range of NAME=A..B or NAME=log:A..B.

    Raises:
      ValueError: the text is wrong; the message says so.
    """
    name, _, values = text.partition("=")
    low, dots, high = values.removeprefix("log:").partition("..")
    if not (name and dots):
        raise ValueError("must be NAME=A..B or NAME=log:A..B")
    try:
        bounds = float(low), float(high)
    except ValueError:
        raise ValueError("the range must be of numbers") from None
    flag, is_log = FLAGS.get(name), values.startswith("log:")
    is_int = flag is not None and flag.kind is int
    if is_int and not all(bound.is_integer() for bound in bounds):
        raise ValueError("the flag takes whole numbers")
    if not bounds[0] < bounds[1] or (is_log and bounds[0] <= 0):
        raise ValueError("the first number must be smaller, and with log: above 0")
    return Range(name, *bounds, is_log, is_int)


def status(logdir: Path) -> Status | None:
    """Returns the newest status of a run; None before the first."""
    return read_status(Logdir(logdir).status())


def is_done(logdir: Path) -> bool:
    """Whether a run is done."""
    newest = status(logdir)
    return newest is not None and newest["state"] == "done"


def rows(logdir: Path) -> list[dict[str, str]]:
    """Returns the rows of a run's metrics.csv; [] if there is none yet."""
    try:
        with Logdir(logdir).metrics.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))
    except FileNotFoundError:
        return []


def mean_return(logdir: Path) -> float | None:
    """Returns the last mean return of a run, as in a report; None if there is none yet."""
    _, points = scores(Logdir(logdir).metrics)
    return points[-1].mean if points else None


def refuse_other_runs(folder: Path, mine: dict[str, Any]) -> None:
    """Exits with 2 if the folder holds runs of something else; otherwise notes what it holds.

    It also exits with 2 if the folder cannot be made or written.

    Args:
      folder: the folder of the runs.
      mine: what all runs in the folder have in common, JSON-able.
    """
    path = folder / "runs_of.json"
    # A folder with only this file has no runs: the first one was refused.
    if path.exists() and any(file != path for file in folder.iterdir()):
        theirs = json.loads(path.read_text(encoding="utf-8"))
    else:
        theirs = mine
    if theirs != mine:
        print(f"{folder}: holds runs of {_shown(theirs)}, not of {_shown(mine)};", file=sys.stderr)
        print("choose another --folder, or delete this one", file=sys.stderr)
        sys.exit(2)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(mine), encoding="utf-8")
    except OSError as error:
        why = f"cannot write there ({error.strerror}); choose another"
        print(f"--folder={folder}: {why}", file=sys.stderr)
        sys.exit(2)


def _shown(shared: dict[str, Any]) -> str:
    words = {
        name: " ".join(map(str, value)) if isinstance(value, list) else value
        for name, value in shared.items()
    }
    return ", ".join(f"{name} {value or 'none'}" for name, value in words.items())


def commit() -> str:
    """Returns the commit of this project, with '+' if files were changed since."""
    command = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"
