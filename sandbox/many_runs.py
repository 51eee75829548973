"""For scripts that start runs of a checkout, wait for them, and read what they have written."""

from __future__ import annotations

import csv
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PROJECT))

from impala_tf.logdir import Logdir  # noqa: E402
from impala_tf.studies import child_runs  # noqa: E402

_LAST_LINES = 15
SCRIPT = PROJECT / "run_experiment.py"


def start(flags: Sequence[str], log: Path | None = None) -> subprocess.Popen[bytes]:
    """Starts run_experiment.py; the run ends with this process.

    Args:
      flags: those of `impala train`.
      log: the file to which the run's output is added. None: the output of this process.
    """
    return child_runs.start(flags, log, (sys.executable, str(SCRIPT)))


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


def rows(logdir: Path) -> list[dict[str, str]]:
    """Returns the rows of a run's metrics.csv; [] if there is none yet."""
    try:
        with Logdir(logdir).metrics.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))
    except FileNotFoundError:
        return []
