"""Runs on a terminal: what ends with it, and what does not."""

from __future__ import annotations

import fcntl
import os
import pty
import subprocess
import sys
import termios
from pathlib import Path

from tests.helpers.runs import PROJECT, checkpointed_frames, rows
from tests.helpers.waiting import wait_until


def test_a_terminal_that_is_closed_stops_a_run_and_runs_the_end_command(tmp_path: Path) -> None:
    """Or an SSH connection that is lost."""
    logdir, told = tmp_path / "run", tmp_path / "told"
    flags = (
        "--level_name=tests.helpers.worlds:CalmCartPole-v1", "--num_actors=1",
        "--metrics_interval_s=1", "--checkpoint_interval_s=1000", f"--logdir={logdir}",
        f"--end_command=echo $IMPALA_TF_STATES > {told}",
    )  # fmt: skip
    terminal, its = pty.openpty()
    run = subprocess.Popen(
        [sys.executable, "run_experiment.py", *flags], cwd=PROJECT, stdin=its, stdout=its,
        stderr=its, start_new_session=True, env={**os.environ, "TERM": "xterm"},
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )  # fmt: skip
    os.close(its)
    try:
        os.set_blocking(terminal, False)

        def trains() -> bool:
            try:
                while os.read(terminal, 65536):
                    pass
            except BlockingIOError:
                pass
            return len(rows(logdir)) >= 2 or run.poll() is not None

        wait_until(trains, 240)
        os.close(terminal)
        run.wait(120)
    finally:
        run.kill()
    assert "learner-0=" in told.read_text()
    assert checkpointed_frames(logdir) == int(rows(logdir)[-1]["environment_frames"]) > 0
