"""Processes that end with their parent."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys

import pytest

from tests.helpers.runs import PROJECT

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
    assert subprocess.run(program, cwd=PROJECT, check=False).returncode == status


TOLD_TWICE = """
import os, signal, time
from impala_tf.machine.process_lifetime import StopRequest
stop = StopRequest()
stop.install()
os.kill(os.getpid(), signal.{first})
time.sleep({after_s})
os.kill(os.getpid(), signal.{second})
print("writes its checkpoint", stop())
"""


@pytest.mark.parametrize(
    ("first", "second", "after_s", "goes_on"),
    [
        ("SIGTERM", "SIGTERM", 0.0, True),  # timeout(1), systemd or Slurm, and a supervisor
        ("SIGINT", "SIGTERM", 1.0, True),
        ("SIGTERM", "SIGINT", 1.0, False),  # Ctrl-C again: stop now
        ("SIGHUP", "SIGHUP", 1.0, True),  # a terminal is closed, and then its shell ends
        ("SIGINT", "SIGHUP", 10.5, True),  # it is closed while the checkpoint is written
    ],
)
def test_several_signals_of_one_request_do_not_cost_the_checkpoint(
    first: str, second: str, after_s: float, goes_on: bool
) -> None:
    program = TOLD_TWICE.format(first=first, second=second, after_s=after_s)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=240, cwd=PROJECT
    )
    assert (done.stdout == "writes its checkpoint True\n") == goes_on
    assert (done.returncode == 0) == goes_on


def test_a_run_that_nohup_started_outlives_its_terminal() -> None:
    program = TOLD_TWICE.format(first="SIGHUP", second="SIGHUP", after_s=0.0)
    command = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh", sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=PROJECT)
    assert done.stdout == "writes its checkpoint False\n"


def test_a_process_that_ends_at_once_shows_the_cursor_of_its_terminal() -> None:
    """The live panel hides it."""
    program = TOLD_TWICE.format(first="SIGINT", second="SIGINT", after_s=1.0)
    terminal, its = pty.openpty()
    done = subprocess.run([sys.executable, "-c", program], stdout=its, timeout=240, cwd=PROJECT)
    assert (done.returncode, os.read(terminal, 100)) == (130, b"\x1b[?25h\r\n")
    os.close(its)
    os.close(terminal)


# The parent starts its child from a thread, and has others, as one that supervises processes.
PARENT = """
import os, subprocess, sys, threading, time
for _ in range(4):
    threading.Thread(target=time.sleep, args=(100,), daemon=True).start()
child = [sys.executable, "-c", sys.argv[1], str(os.getpid())]
thread = threading.Thread(target=subprocess.run, args=(child,))
thread.start()
thread.join()
"""
CHILD = """
import os, signal, sys, time
from impala_tf.machine.process_lifetime import StopRequest, die_with_parent
stop = StopRequest()
stop.install()
die_with_parent(int(sys.argv[1]), signal.SIGTERM)
if {stops_before}:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(1.0)
print("ready", flush=True)
for _ in range(600):
    time.sleep(0.1)
    if stop() and not {stops_before}:
        break
print("writes its checkpoint", stop())
"""


@pytest.mark.parametrize(
    ("stops_before", "printed"), [(False, "writes its checkpoint True\n"), (True, "")]
)
def test_the_end_of_the_parent_is_one_request(stops_before: bool, printed: str) -> None:
    """For a process that was not told before. One that hangs while it stops must not stay."""
    child = CHILD.format(stops_before=stops_before)
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, child], stdout=subprocess.PIPE, text=True, cwd=PROJECT
    )
    assert parent.stdout is not None
    assert parent.stdout.readline() == "ready\n"
    parent.kill()
    assert parent.stdout.read() == printed  # returns when the child has ended, too
    parent.wait()
