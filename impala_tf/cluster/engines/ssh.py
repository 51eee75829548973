"""SSH: a workers CSV names machines, and the launcher starts the processes there, in tmux.

The commands for its runs, some of which other engines lack, are in `status` and `operate`.
"""

from __future__ import annotations

import sys

from impala_tf.cluster.launch import Differences, Launcher, check_secrets, launch
from impala_tf.cluster.machines import Machines
from impala_tf.cluster.plan import as_text, plan_of, warnings
from impala_tf.cluster.runner import ClusterError
from impala_tf.cluster.watch import MakeDisplay, Watcher
from impala_tf.config import Given


def render(given: Given) -> str:
    """Returns a row per machine with its processes; see `engine.Engine`. Opens no connection."""
    plan, _ = plan_of(given, sys.executable)
    check_secrets(given)
    return as_text(plan) + "".join(f"{line}\n" for line in warnings(plan))


def submit(given: Given, make_display: MakeDisplay, differences: Differences) -> int:
    """Launches a run and, without --detach, shows it until it ends; see `engine.Engine`.

    Raises:
      ClusterError: a file of this machine cannot be written.
    """

    def show(launcher: Launcher, machines: Machines) -> int:
        return Watcher(launcher, machines, make_display).run()

    try:
        return launch(given, differences, show)
    except OSError as error:
        if error.filename is None:
            raise
        raise ClusterError(f"{error.filename}: {error.strerror}") from error
