"""Processes that end with their parent."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

from impala_tf.machine.process_lifetime import run_interruptibly

ROOT = Path(__file__).parents[2]


ORPHAN = """
import signal
from impala_tf.machine.process_lifetime import die_with_parent
die_with_parent(parent_pid={pid}, signal_number=signal.SIGTERM)
"""


@pytest.mark.parametrize(("orphaned", "status"), [(True, -signal.SIGTERM), (False, 0)])
def test_a_process_whose_parent_has_already_ended_stops_itself(orphaned: bool, status: int) -> None:
    """The kernel reports only parents that end later, so the process has to check."""
    pid = os.getppid() if orphaned else os.getpid()  # anything but the real parent
    program = [sys.executable, "-c", ORPHAN.format(pid=pid)]
    assert subprocess.run(program, cwd=ROOT, check=False).returncode == status


class Used:
    """What work uses."""


def test_what_work_has_used_is_freed_when_its_failure_is_handled() -> None:
    """Otherwise a process frees an emulator only while Python shuts down, which prints a page."""
    used = Used()
    watched = weakref.ref(used)

    def work() -> None:
        _ = used
        raise ValueError

    gc.disable()
    try:
        try:
            run_interruptibly(work)
        except ValueError:
            del work, used
        assert watched() is None
    finally:
        gc.enable()


TOLD_TWICE = """
import os, signal
from impala_tf.machine.process_lifetime import StopRequest
stop = StopRequest()
stop.install()
os.kill(os.getpid(), signal.{first})
os.kill(os.getpid(), signal.{second})
print("writes its checkpoint", stop())
"""


@pytest.mark.parametrize(
    ("first", "second", "step", "goes_on"),
    [
        ("SIGTERM", "SIGTERM", "0", True),  # of Slurm, and of the supervisor
        ("SIGINT", "SIGTERM", "0", True),
        ("SIGTERM", "SIGINT", "0", False),  # Ctrl-C again: stop now
        ("SIGTERM", "SIGTERM", None, False),
    ],
)
def test_slurm_and_a_supervisor_tell_a_process_to_stop(
    first: str, second: str, step: str | None, goes_on: bool
) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "SLURM_STEP_ID"}
    done = subprocess.run(
        [sys.executable, "-c", TOLD_TWICE.format(first=first, second=second)],
        capture_output=True, text=True, timeout=60, cwd=ROOT,
        env={**environment, **({"SLURM_STEP_ID": step} if step else {})},
    )  # fmt: skip
    assert (done.stdout == "writes its checkpoint True\n") == goes_on
    assert (done.returncode == 0) == goes_on
