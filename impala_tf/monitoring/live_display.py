"""Shows a run while it trains: a live panel on a terminal, otherwise a line every few seconds.

Reads the fields of status.json (`status.Status`); does not need TensorFlow.
"""

from __future__ import annotations

import contextlib
import logging
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence

from rich.console import Console, RenderableType
from rich.live import Live

from impala_tf.monitoring.render import panel, plain_line, troubles
from impala_tf.monitoring.status import Status

_log = logging.getLogger(__name__)

_LINES_BESIDES_ACTORS = 17  # of the panel and the prompt below it


class Display:
    """Shows a run from `start` to `stop`.

    What cannot be written is lost, and a warning says so once: the run continues.

    Args:
      status_source: returns the newest status, or None if there is none yet.
      console: a terminal shows the live panel. Default: standard output.
      interval_s: seconds between lines, if the output is not a terminal.
      clock: seconds that never jump, unlike the time of day.
      may_lose: tells whether the run goes on when its reader has closed the pipe.
    """

    def __init__(
        self,
        status_source: Callable[[], Status | None],
        console: Console | None = None,
        interval_s: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
        may_lose: Callable[[], bool] = lambda: False,
    ) -> None:
        self._source = status_source
        self._console = console or _console()
        self._interval_s = interval_s
        self._clock = clock
        self._may_lose = may_lose
        self._status: Status | None = None  # the newest; it stays while none can be read
        self._rate = FrameRate()
        self._learner_pid: int | None = None
        self._next_line_s = 0.0
        self._last_line = ""
        self._troubles: list[str] = []
        self._noted: list[str] = []
        self._written_unix_s, self._written_at_s = 0.0, clock()  # of the last new status
        self._live: Live | None = None
        self._loses = False  # whether the last lines could not be written

    def start(self) -> None:
        """Starts the display; call `update` about four times per second from here on."""
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            live = Live(console=self._console, auto_refresh=False)
            with self._writing():
                live.start()
                self._live = live
        self.update()

    def update(self) -> None:
        """Shows the newest status.

        At once on a terminal. Otherwise when the next line is due, or if a trouble begins or ends.
        """
        status = self._read()
        before, self._troubles = self._troubles, troubles(status) if status else []
        if self._live is not None:
            with self._writing():
                self._live.update(self._render(status), refresh=True)
        elif self._clock() >= self._next_line_s or before != self._troubles:
            self._print_line(status)

    def note(self, text: str) -> None:
        """Prints an event with the time of day; it stays above the live panel."""
        moment = time.strftime("%H:%M:%S", time.localtime())
        self.say(f"{moment} {text}")

    def say(self, line: str) -> None:
        """Prints a line, or several; they stay above the live panel."""
        with self._writing():
            self._console.print(line, markup=False, highlight=False, emoji=False, soft_wrap=True)

    def stop(self, final_lines: str) -> None:
        """Ends the display; the last status stays on the screen, with `final_lines` below it."""
        status = self._read()
        if self._live is not None:
            live, self._live = self._live, None
            with self._writing():
                live.update(self._render(status), refresh=True)
            with self._writing():
                live.stop()
        elif status is not None and status["row"] is not None:
            self._print_line(status)
        self.say(final_lines)

    def _read(self) -> Status | None:
        self._status = status = self._source() or self._status
        if status is not None and status["updated_unix_s"] != self._written_unix_s:
            self._written_unix_s, self._written_at_s = status["updated_unix_s"], self._clock()
        if status is not None and status["state"] == "training":
            self._measure(status)
        if status is not None:
            self._note_new(status.get("notes", []))
        return status

    def _note_new(self, lines: Sequence[str]) -> None:
        """Prints what the learner has to say once; a restarted learner may say it again."""
        for line in lines:
            if line not in self._noted:
                self._noted.append(line)
                self.note(line)

    def _measure(self, status: Status) -> None:
        if status.get("pid") != self._learner_pid:  # of another learner, or a restarted one
            self._learner_pid, self._rate = status.get("pid"), FrameRate()
        # The time of day jumps if it is set, or if the machine wakes.
        at_s = status.get("updated_uptime_s", status["updated_unix_s"])
        self._rate.update(status["environment_frames"], at_s)

    def _print_line(self, status: Status | None) -> None:
        self._next_line_s = self._clock() + self._interval_s
        line = plain_line(status, self._rate.per_s)
        if line != self._last_line:
            self.say(line)
        self._last_line = line

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """A block that writes to the console: a full disk or a lost terminal must not end a run.

        Raises:
          SystemExit: the reader has closed the pipe, as `head` does to end a command. If `may_lose`
            says so, all that follows is lost: Ctrl-C ends `tee`, too.
        """
        try:
            yield
        except (BrokenPipeError, SystemExit):  # rich turns the one into the other
            if not self._may_lose():
                raise
        except OSError as error:
            if not self._loses:
                _log.warning("cannot show the run: %s; training continues", error.strerror or error)
            self._loses = True
            self._forget_unwritten()
        else:
            self._loses = False

    def _forget_unwritten(self) -> None:
        """Keeps the console from collecting in memory, for days, what it could not write."""
        self._console.quiet = True
        self._console.print()
        self._console.quiet = False

    def _render(self, status: Status | None) -> RenderableType:
        learners = len(status.get("learners", ())) if status else 0
        lines = _LINES_BESIDES_ACTORS + (learners + 2 if learners else 0)
        max_actors = max(3, self._console.height - lines)
        return panel(status, self._rate.per_s, self._learners_unix_s(), max_actors)

    def _learners_unix_s(self) -> float:
        """The learner's time of day: that of this machine may differ, and may be set meanwhile."""
        return self._written_unix_s + self._clock() - self._written_at_s


def _console() -> Console:
    """Returns standard output. FORCE_COLOR, which CI systems set, makes a file no terminal."""
    isatty = getattr(sys.stdout, "isatty", None)  # of an object of the user's, or of None
    return Console(force_terminal=None if isatty and isatty() else False)


class FrameRate:
    """Frames per second, smoothed over about the last minute."""

    def __init__(self, time_constant_s: float = 60.0) -> None:
        self._time_constant_s = time_constant_s
        self._last: tuple[int, float] | None = None
        self._frames = 0.0
        self._seconds = 0.0

    @property
    def per_s(self) -> float:
        """The rate; 0 while it is unknown."""
        return self._frames / self._seconds if self._seconds else 0.0

    def update(self, environment_frames: int, at_s: float) -> None:
        """Takes the frame count at a time; repeated calls and clocks set back do no harm.

        Fewer frames than before begin a new measurement: they are of a resumed run.
        """
        frames_before, before_s = self._last or (environment_frames, at_s)
        if environment_frames < frames_before:
            self._frames = self._seconds = 0.0
            frames_before, before_s = environment_frames, at_s
        self._last = (environment_frames, at_s)
        if at_s > before_s:
            keep = math.exp((before_s - at_s) / self._time_constant_s)
            self._frames = self._frames * keep + environment_frames - frames_before
            self._seconds = self._seconds * keep + at_s - before_s
