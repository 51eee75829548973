"""The tmux session of a run on a machine: one window per process, which runs that process."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from frontend.errors import ClusterError
from frontend.machine import NOT_FOUND, Completed, Machine

_FORMAT = "#{window_id}:#{pane_pid}:#{pane_dead}:#{@impala_run}:#{window_name}"
_SIZE = ("-x", "160", "-y", "48")  # until somebody attaches to the session


@dataclasses.dataclass(frozen=True)
class Window:
    """A window, or a pane of it."""

    id: str
    name: str
    pid: int
    dead: bool
    """Its process has exited. The supervisor keeps the exit status: tmux may miss an early one."""
    run_id: str
    """The run that opened it; '' for a window that no run opened."""


class Session:
    """A tmux session on a machine. It may not exist yet."""

    def __init__(self, machine: Machine, name: str) -> None:
        """`name`: letters, digits, _ and -, as in --tmux_sess."""
        self._machine = machine
        self._name = name

    def windows(self) -> list[Window] | None:
        """Returns the session's windows, or None if the session does not exist.

        Raises ClusterError if tmux is not installed.
        """
        if self._tmux("has-session", "-t", f"={self._name}").status != 0:
            return None
        listed = self._tmux("list-panes", "-s", "-t", f"={self._name}", "-F", _FORMAT)
        if listed.status != 0:
            return None  # The session ended between the two commands.
        return [_window(line) for line in listed.stdout.splitlines()]

    def open(self, window: str, argv: Sequence[str], run_id: str) -> None:
        """Opens a window, which stays when its command exits. Creates the session if necessary.

        Args:
          window: its name.
          argv: the command. At least two words, because tmux runs a single word in a shell.
          run_id: the run that it belongs to.

        Raises:
          ClusterError: with tmux's own message.
        """
        where = f"={self._name}:={window}"
        exists = self._tmux("has-session", "-t", f"={self._name}").status == 0
        new = ("new-window", "-t", f"={self._name}:") if exists else (
            "new-session", "-s", self._name, *_SIZE)  # fmt: skip
        # One command line, so that tmux sets the options before it notices that the process exited.
        done = self._tmux(
            *new, "-d", "-n", window, "--", *map(_word, argv),
            ";", "set-option", "-w", "-t", where, "remain-on-exit", "on",
            ";", "set-option", "-w", "-t", where, "@impala_run", run_id,
        )  # fmt: skip
        if done.status != 0:
            raise ClusterError(f"{self._machine.place.name}: tmux: {done.last_line}")

    def close(self, run_id: str) -> None:
        """Closes the windows of a run; the session ends with its last window."""
        for window in self.windows() or []:
            if window.run_id == run_id:
                self._tmux("kill-window", "-t", window.id)

    def last_line(self, window: str) -> str:
        """Returns the last line that a window shows, or '' if there is none."""
        done = self._tmux("capture-pane", "-p", "-J", "-S", "-", "-t", f"={self._name}:={window}")
        # tmux adds "Pane is dead" below the output of the process.
        lines = [x for x in done.stdout.splitlines() if x.strip() and not x.startswith("Pane is")]
        return lines[-1].strip() if lines else ""

    def _tmux(self, *words: str) -> Completed:
        done = self._machine.run(["tmux", *words])
        if done.status == NOT_FOUND:
            raise ClusterError(
                f"{self._machine.place.name}: tmux is missing; on Debian: apt-get install tmux"
            )
        return done


def _word(word: str) -> str:
    """Escapes a ';' at the end of a word, which would end tmux's command."""
    return f"{word[:-1]}\\;" if word.endswith(";") else word


def _window(line: str) -> Window:
    window_id, pid, dead, run_id, name = line.split(":", 4)
    return Window(window_id, name, int(pid), dead == "1", run_id)
