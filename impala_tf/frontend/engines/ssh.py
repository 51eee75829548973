"""SSH: a workers CSV names machines, and the launcher starts the processes there, in tmux.

What is remembered of a run is cluster.json, see `record`. Commands that no other engine has, such
as `attach`, are in `operate`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from impala_tf.config import ClusterConfig, Given
from impala_tf.frontend import operate, overview, record, status
from impala_tf.frontend.engines.engine import Hooks
from impala_tf.frontend.launch import check_secrets, launch
from impala_tf.frontend.launcher import STOP_S, plan_of


def render(given: Given) -> str:
    """Returns a row per machine: what it would run; see `engine.Engine`. Opens no connection."""
    plan, _, _ = plan_of(given, sys.executable)
    check_secrets(given)
    return overview.text(plan) + "".join(f"{line}\n" for line in overview.warnings(plan))


def submit(given: Given, hooks: Hooks) -> int:
    """Launches a run and shows it until it ends; see `launch` and `engine.Engine`."""
    return launch(given, make_display=hooks.make_display, differences=hooks.differences)


def find(logdir: str | Path | None, tmux_sess: str = ClusterConfig.tmux_sess) -> Path:
    """Returns the logdir of a run; without one, that of the newest run in a tmux session."""
    return record.find(logdir, tmux_sess)


def show_status(
    job: Path, follow: bool = False, targets: tuple[str, ...] = (), problems: bool = False
) -> int:
    """Prints sums and the state of processes; see `status.show_status`."""
    shown = status.Shown(targets, problems)
    return status.show_status(job, overview.wide_console(), follow, shown)


def follow_log(job: Path, name: str, follow: bool, host: str | None = None) -> int:
    """Prints the output of a process; see `status.follow_logs`."""
    return status.follow_logs(job, name, follow, host)


def stop(job: Path, target: str | None, timeout_s: float = STOP_S) -> int:
    """Stops the run, or a process or machine of it; see `operate.stop`."""
    return operate.stop(job, timeout_s, target)
