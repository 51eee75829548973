"""What an operator sees on a terminal: `status -f`, `watch` and `attach`."""

import os
import pty
import signal
import subprocess
import sys
import threading
import time

from tests.helpers.runs import PROJECT
from tests.helpers.waiting import wait_until


class Terminal:
    """A command of the launcher on a terminal of its own."""

    def __init__(self, *words):
        self._master, slave = pty.openpty()
        self.shown = b""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "frontend", *words], cwd=PROJECT, stdin=slave, stdout=slave,
            stderr=slave, start_new_session=True,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "200", "LINES": "40"},
        )  # fmt: skip
        os.close(slave)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        try:
            while data := os.read(self._master, 65536):
                self.shown += data
        except OSError:
            pass  # The process has closed its side.

    def type(self, *keys):
        """Types as a person does: tmux takes keys within a millisecond for pasted text."""
        for key in keys:
            os.write(self._master, key)
            time.sleep(0.1)

    def wait_for(self, text, times=1):
        wait_until(lambda: self.shown.count(text) >= times, explain=lambda: self.shown)


def test_status_follows_the_run_until_ctrl_c(launched):
    terminal = Terminal("status", "-f", f"--logdir={launched.logdir}")
    terminal.wait_for(b"learner-0", times=2)
    launched.command("restart", "actor-1")
    wait_until(lambda: launched.state("actor-1").restarts == 1)
    before = len(terminal.shown)
    wait_until(lambda: b"actor-1" in terminal.shown[before:])
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.process.wait(20) == 130
    assert b"Traceback" not in terminal.shown
    assert launched.state("learner-0").state == "running"


def test_watch_shows_the_run_and_leaves_it_running(launched):
    terminal = Terminal("watch", f"--logdir={launched.logdir}")
    terminal.wait_for(b"Stand-in-v0")
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.process.wait(30) == 0
    terminal.wait_for(b"left running: 3 processes on 1 machine(s)")
    assert b"Traceback" not in terminal.shown
    assert launched.state("learner-0").state == "running"


def test_attach_shows_the_windows_of_the_run(launched):
    terminal = Terminal("attach", f"--logdir={launched.logdir}", "this machine")
    terminal.wait_for(b"1:learner-0*")  # tmux marks the window that it shows.
    # Keys that arrive together, as they may on a busy machine, would be text that is pasted.
    subprocess.run(["tmux", "set-option", "-g", "assume-paste-time", "0"], check=True)
    terminal.type(b"\x02", b"d")  # detaches
    assert terminal.process.wait(20) == 0
    assert launched.state("learner-0").state == "running"
