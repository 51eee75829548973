"""The tmux windows of a node: the supervisor's, and one for the log of each process."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence

from impala_tf.config import user_commands
from impala_tf.frontend.node import state as files
from impala_tf.frontend.node.state import Orders
from impala_tf.frontend.node.tmux import RunSession
from impala_tf.logdir import replace_file

SUPERVISOR = "supervisor"
"""Name of the supervisor's window."""
# Shows a log until the supervisor, which holds the lock, has exited. (tail --pid would wait forever
# if tmux did not reap the supervisor.)
_SHOW_LOG = 'tail -n 200 -F -- "$1" & t=$!; flock -s "$2" true; sleep 1; kill $t'
# Restarts the supervisor if it was killed, for example when the machine ran out of memory. It is
# not restarted after a status up to 2, which means that its processes are over; if it has never
# written its state, as it cannot work here; and after Ctrl-C or SIGTERM, which also end the
# supervisor. (When the window is closed, SIGHUP ends this shell, and then reaches the supervisor.)
_KEEP = r"""
cd -- "$1" || exit; log=$2 state=$3; shift 3; pause=2 told=
trap told=1 INT TERM
while :; do
    began=$(date +%s)
    "$@" 2>>"$log"; status=$?
    [ $status -gt 2 ] && [ -z "$told" ] && [ -e "$state" ] || break
    [ $(($(date +%s) - began)) -lt 600 ] || pause=2
    echo "$(date "+%F %T") the supervisor has died (status $status); restart in $pause s" |
        tee -a "$log"
    sleep $pause
    [ -z "$told" ] || break
    pause=$((pause * 3)); [ $pause -le 120 ] || pause=120
done
[ $status -eq 0 ] || tail -n 5 "$log"
exit $status
"""


def open_supervisor(session: RunSession, orders: Orders) -> None:
    """Opens the window of the supervisor. Raises AgentError."""
    _write_environment(orders)
    logdir, node = orders.logdir, orders.node
    where = [orders.code or ".", files.supervisor_log(logdir, node), files.state_path(logdir, node)]
    command = [
        sys.executable,
        *user_commands.module("impala_tf.frontend.node.supervisor"),
        files.orders_path(logdir, node),
    ]
    _open(session, orders, SUPERVISOR, ["sh", "-c", _KEEP, "sh", *map(str, where + command)])


def open_missing(session: RunSession, orders: Orders) -> None:
    """Opens the windows of processes that have none. Raises AgentError."""
    _write_environment(orders)
    present = {window.name for window in session.windows() if window.run_id == orders.run_id}
    for name in (spec.name for spec in orders.processes if spec.name not in present):
        log, lock = files.log_path(orders.logdir, name), files.lock_path(orders.logdir, orders.node)
        _open(session, orders, name, ["sh", "-c", _SHOW_LOG, "sh", str(log), str(lock)])


def _open(session: RunSession, orders: Orders, window: str, command: Sequence[str]) -> None:
    # A running tmux server would give windows its own, older environment. The variables are in a
    # file, because a tmux command has at most 16 kB, and search paths of modules may be longer.
    path = files.environment_path(orders.logdir, orders.node)
    session.open(window, ["sh", str(path), *command], orders.run_id)


def _write_environment(orders: Orders) -> None:
    """Writes the script that runs a command with only the variables of the orders."""
    terminal_names = ("TMUX", "TMUX_PANE", "TERM")
    variables = [f"{k}={v}" for k, v in orders.environment.items() if k not in terminal_names]
    script = 'exec env -i TMUX="$TMUX" TMUX_PANE="$TMUX_PANE" TERM="$TERM" %s "$@"\n'
    path = files.environment_path(orders.logdir, orders.node)
    replace_file(path, os.fsencode(script % shlex.join(variables)))
