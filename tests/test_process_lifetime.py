"""Processes that end with their parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


ORPHAN = """
import signal
from impala_tf.process_lifetime import die_with_parent
die_with_parent(parent_pid={pid}, signal_number=signal.SIGTERM)
"""


@pytest.mark.parametrize(("orphaned", "status"), [(True, -signal.SIGTERM), (False, 0)])
def test_a_process_whose_parent_has_already_ended_stops_itself(orphaned: bool, status: int) -> None:
    """The kernel reports only parents that end later, so the process has to check."""
    pid = os.getppid() if orphaned else os.getpid()  # anything but the real parent
    program = [sys.executable, "-c", ORPHAN.format(pid=pid)]
    assert subprocess.run(program, cwd=ROOT, check=False).returncode == status
