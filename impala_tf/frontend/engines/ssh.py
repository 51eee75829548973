"""SSH: a workers CSV names machines, and the launcher starts the processes there, in tmux.

The record of a run is cluster.json (see `record`), and its job is its logdir here. Commands that
other engines lack, such as `attach`, are in `operate`, `added_rows` and `attaching`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from impala_tf.config import ConfigError, Given, actors_wait
from impala_tf.frontend import overview
from impala_tf.frontend.engines.engine import Hooks
from impala_tf.frontend.errors import ClusterError
from impala_tf.frontend.launch import check_secrets, launch
from impala_tf.frontend.launcher import plan_of
from impala_tf.frontend.operate import stop
from impala_tf.frontend.record import NAME, find
from impala_tf.frontend.status import follow_log, show_status

__all__ = ["find", "follow_log", "render", "show_status", "stop", "submit"]


def render(given: Given) -> str:
    """Returns a row per machine with its processes; see `engine.Engine`. Opens no connection."""
    plan, _ = plan_of(given, sys.executable)
    check_secrets(given)
    waits = actors_wait(given["algorithm"], given["synchronization"])
    return overview.text(plan) + "".join(f"{line}\n" for line in overview.warnings(plan, waits))


def submit(given: Given, hooks: Hooks) -> int:
    """Launches a run and shows it until it ends; see `launch` and `engine.Engine`.

    Raises:
      ConfigError: a file of this machine cannot be written; nothing was started.
      ClusterError: a file of this machine cannot be written; the run continues.
    """
    path = Path(given["logdir"]) / NAME
    before = _changed_ns(path)
    try:
        return launch(given, make_display=hooks.make_display, differences=hooks.differences)
    except OSError as error:
        if error.filename is None:
            raise
        # The record is written before anything is started.
        kind = ConfigError if _changed_ns(path) == before else ClusterError
        raise kind(f"{error.filename}: {error.strerror}") from error


def _changed_ns(path: Path) -> int:
    return path.stat().st_mtime_ns if path.exists() else 0
