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
