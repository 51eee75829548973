"""The tmux session of a run here: a window for the supervisor, and one for each process's log."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import libtmux
from libtmux.exc import LibTmuxException, TmuxCommandNotFound

from impala_tf.cluster.node import state as files
from impala_tf.cluster.node.state import AgentError, Orders
from impala_tf.config import user_commands
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
cd -- "$1" || exit; log=$2 state=$3; shift 3; told=
trap told=1 INT TERM
while :; do
    "$@" 2>>"$log"; status=$?
    [ $status -gt 2 ] && [ -z "$told" ] && [ -e "$state" ] || break
    echo "$(date "+%F %T") the supervisor has died (status $status); restart in 5 s" |
        tee -a "$log"
    sleep 5
    [ -z "$told" ] || break
done
[ $status -eq 0 ] || tail -n 5 "$log"
exit $status
"""
_FORMAT = "#{window_id}:#{pane_pid}:#{pane_dead}:#{@impala_run}:#{window_name}"
_WIDTH, _HEIGHT = 160, 48  # until somebody attaches to the session
# A window sets its own options before it runs its command: set from outside, they would come too
# late to keep the window of a short command open.
_IN_WINDOW = (
    'tmux set-option -w -t "$TMUX_PANE" remain-on-exit on \\; '
    'set-option -w -t "$TMUX_PANE" @impala_run "$0" && exec "$@"'
)


class Window(NamedTuple):
    """A window, or a pane of it."""

    id: str
    name: str
    dead: bool
    """Its command has exited."""
    run_id: str
    """The run that opened it; '' for a window that no run opened."""
    pid: int
    """The pid of its command."""


class RunSession:
    """A tmux session, which may not exist yet."""

    def __init__(self, name: str) -> None:
        """Takes the name, as in --tmux_sess. Raises AgentError if tmux is not installed."""
        # If this runs inside tmux, TMUX names that server. Runs always use the default server.
        os.environ.pop("TMUX", None)
        self._name = name
        try:
            self._server = libtmux.Server()
            self._server.cmd("-V")
        except TmuxCommandNotFound as error:
            raise AgentError("tmux is missing; on Debian: apt-get install tmux") from error

    def windows(self) -> list[Window]:
        """Returns the session's windows; [] if the session does not exist."""
        panes = self._server.cmd("list-panes", "-s", "-t", f"={self._name}", "-F", _FORMAT)
        cells = [line.split(":", 4) for line in panes.stdout] if not panes.stderr else []
        return [
            Window(window_id, name, dead == "1", run_id, int(pid))
            for window_id, pid, dead, run_id, name in cells
        ]

    def open(self, window: str, argv: Sequence[str], run_id: str) -> None:
        """Opens a window, which stays when its command exits. Creates the session if necessary.

        Args:
          window: the window's name.
          argv: the words of its command; no shell interprets them.
          run_id: the run that the window belongs to.

        Raises:
          AgentError: tmux fails; with its own message.
        """
        # tmux passes the command to the login shell.
        command = shlex.join(["sh", "-c", _IN_WINDOW, run_id, *argv])
        try:
            if self._server.has_session(self._name):
                session = self._server.sessions.get(session_name=self._name)
                if session is not None:
                    session.new_window(window, window_shell=command)
                return
            self._server.new_session(
                self._name, window_name=window, window_command=command, x=_WIDTH, y=_HEIGHT
            )
        except LibTmuxException as error:
            raise AgentError(f"tmux: {error}") from error

    def close(self, run_id: str, names: Sequence[str] | None = None) -> None:
        """Closes a run's windows, or those called `names`. The session ends with the last one."""
        for window in self.windows():
            if window.run_id == run_id and (names is None or window.name in names):
                self._server.cmd("kill-window", "-t", window.id)

    def show(self, window: str) -> None:
        """Makes `tmux attach` show this window first."""
        self._server.cmd("select-window", "-t", f"={self._name}:={window}")

    def last_line(self, window: str) -> str:
        """Returns the last line that a window shows, or '' if there is none."""
        where = f"={self._name}:={window}"
        screen = self._server.cmd("capture-pane", "-p", "-J", "-S", "-", "-t", where).stdout
        # tmux adds "Pane is dead" below the output of the process.
        lines = [line for line in screen if line.strip() and not line.startswith("Pane is")]
        return lines[-1].strip() if lines else ""


def open_supervisor(session: RunSession, orders: Orders, variables: Mapping[str, str]) -> None:
    """Opens the window of the supervisor, which gets these variables only. Raises AgentError."""
    # A running tmux server would give the window its own, older environment. The variables are in a
    # file, because a tmux command has at most 16 kB, and search paths of modules may be longer.
    words = [f"{name}={value}" for name, value in variables.items()]
    script = 'exec env -i TMUX="$TMUX" TMUX_PANE="$TMUX_PANE" TERM="$TERM" %s "$@"\n'
    logdir, node = orders.logdir, orders.node
    path = files.processes_folder(logdir) / f"{node}.environment"
    replace_file(path, os.fsencode(script % shlex.join(words)))
    command = [
        *("sh", path, "sh", "-c", _KEEP, "sh"),
        *(orders.code or ".", files.supervisor_log(logdir, node), files.state_path(logdir, node)),
        *(sys.executable, *user_commands.module("impala_tf.cluster.node.supervisor")),
        files.orders_path(logdir, node),
    ]
    session.open(SUPERVISOR, [str(word) for word in command], orders.run_id)


def open_missing(session: RunSession, orders: Orders) -> None:
    """Opens the windows of processes that have none. Raises AgentError."""
    present = {window.name for window in session.windows() if window.run_id == orders.run_id}
    lock = files.lock_path(orders.logdir, orders.node)
    for name in (spec.name for spec in orders.processes if spec.name not in present):
        log = files.log_path(orders.logdir, name)
        session.open(name, ["sh", "-c", _SHOW_LOG, "sh", str(log), str(lock)], orders.run_id)
