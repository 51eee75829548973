"""Shows a run while it trains: a live panel on a terminal, otherwise a line every few seconds.

It reads the fields of status.json (`status.Status`), and does not need TensorFlow.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from rich.console import Console, RenderableType
from rich.live import Live

from impala_tf.monitoring.render import FINAL_STATES, panel, plain_line, troubles
from impala_tf.monitoring.status_file import Status

_LINES_BESIDES_ACTORS = 19  # lines of the panel, and of the prompt below it


class Display:
    """Shows a run from `start` to `stop`: a live panel on a terminal, else a line each interval.

    Output that cannot be written is lost, and the run continues. `clock` must never jump.
    """

    def __init__(
        self,
        status_source: Callable[[], Status | None],
        console: Console | None = None,
        interval_s: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = status_source
        self._console = console or _console()
        self._interval_s = interval_s
        self._clock = clock
        self._status: Status | None = None  # the newest that could be read
        self._next_line_s = 0.0
        self._last_line = ""
        self._troubles: list[str] = []
        self._noted: list[str] = []
        # When the newest status was written, by the learner's clock and by this one.
        self._written_unix_s, self._written_at_s = 0.0, clock()
        self._live: Live | None = None

    def start(self) -> None:
        """Starts the display. From then on, call `update` about four times per second."""
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            live = Live(console=self._console, auto_refresh=False)
            with self._writing():
                live.start()
                self._live = live
        self.update()

    def update(self) -> None:
        """Shows the newest status.

        On a terminal, it does so at once; otherwise when the next line is due, or when the list of
        problems changes.
        """
        status = self._read()
        old_troubles, self._troubles = self._troubles, troubles(status) if status else []
        if self._live is not None:
            with self._writing():
                self._live.update(self._render(status), refresh=True)
        elif status is not None and status["state"] in FINAL_STATES:
            pass  # `stop` says how it ended
        elif self._clock() >= self._next_line_s or old_troubles != self._troubles:
            self._next_line_s = self._clock() + self._interval_s
            line = plain_line(status)
            if line != self._last_line:
                self.say(line)
            self._last_line = line

    def note(self, text: str) -> None:
        """Prints an event with the time of day, above the live panel."""
        moment = time.strftime("%H:%M:%S", time.localtime())
        self.say(f"{moment} {text}")

    def say(self, line: str) -> None:
        """Prints a line or several lines, above the live panel."""
        with self._writing():
            self._console.print(line, markup=False, highlight=False, emoji=False, soft_wrap=True)

    def stop(self, final_lines: str) -> None:
        """Ends the display. The last status stays on the screen, with `final_lines` below it."""
        status = self._read()
        if self._live is not None:
            live, self._live = self._live, None
            with self._writing():
                live.update(self._render(status), refresh=True)
            with self._writing():
                live.stop()
        elif status is not None and (line := plain_line(status)) != self._last_line:
            self.say(line)
        self.say(final_lines)

    def _read(self) -> Status | None:
        self._status = status = self._source() or self._status
        if status is not None and status["updated_unix_s"] != self._written_unix_s:
            self._written_unix_s, self._written_at_s = status["updated_unix_s"], self._clock()
        for line in status.get("notes", []) if status else []:
            if line not in self._noted:  # a restarted learner repeats its notes
                self._noted.append(line)
                self.note(line)
        return status

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Wraps writing to the console: a full disk, or a reader that ends, must not end a run."""
        try:
            yield
        except SystemExit:  # rich makes it of BrokenPipeError, and writes no more
            pass
        except OSError:
            # This drops unwritten output, which the console would otherwise collect in memory.
            self._console.quiet = True
            self._console.print()
            self._console.quiet = False

    def _render(self, status: Status | None) -> RenderableType:
        learners = len(status.get("learners", ())) if status else 0
        lines = _LINES_BESIDES_ACTORS + (learners + 2 if learners else 0)
        # The learner's time of day, from which this machine's may differ.
        now_unix_s = self._written_unix_s + self._clock() - self._written_at_s
        return panel(status, now_unix_s, max(3, self._console.height - lines))


def _console() -> Console:
    """Returns standard output. FORCE_COLOR, which CI systems set, must not make it a terminal."""
    isatty = getattr(sys.stdout, "isatty", None)  # stdout may be None or a user's object
    return Console(force_terminal=None if isatty and isatty() else False)
