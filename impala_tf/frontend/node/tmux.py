"""The tmux session of a run on this machine: one window per process."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from typing import NamedTuple

import libtmux
from libtmux.exc import LibTmuxException, TmuxCommandNotFound

from impala_tf.frontend.node.state import AgentError

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
