"""Shows the progress of a comparison: of each agent's runs and of all, with the time left."""

from __future__ import annotations

import collections
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import many_runs  # noqa: F401  (finds impala_tf)
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn

from impala_tf.logdir import Logdir
from impala_tf.monitoring.render import duration
from impala_tf.monitoring.status import Status, read_status

_TELLING = 0.03


class RunProgress(NamedTuple):
    """A run of a comparison."""

    agent_name: str
    seed: int
    logdir: Path
    total_frames: int
    flags: list[str]  # its own flags, which the other runs do not have
    interval_s: float  # between printed lines

    @property
    def log(self) -> Path:
        """The file with the run's output."""
        return self.logdir.with_suffix(".log")

    def status(self) -> Status | None:
        """Returns the newest status; None before the first."""
        return read_status(Logdir(self.logdir).status())


class Estimate(NamedTuple):
    """The progress of a comparison."""

    share: float  # of all frames, 0 to 1
    seconds_left: float | None  # None: no run has a speed yet


def estimate(runs: Sequence[tuple[RunProgress, Status | None]]) -> Estimate:
    """Returns the progress of the runs, and the time left at each agent's own speed.

    An agent that has not trained yet is assumed to have the others' average speed.
    """
    frames, seconds = collections.Counter[str](), collections.Counter[str]()
    for run, status in runs:
        row = (status["row"] if status else None) or {}
        # The first frames say nothing about the speed: a run needs some seconds to start.
        if _frames(status) >= _TELLING * run.total_frames:
            frames[run.agent_name] += int(row.get("environment_frames") or 0)
            seconds[run.agent_name] += round(row.get("wall_time_s") or 0)
    per_frame = {agent: seconds[agent] / frames[agent] for agent in frames if frames[agent]}
    done = sum(min(_frames(status), run.total_frames) for run, status in runs)
    share = done / sum(run.total_frames for run, _ in runs)
    if not per_frame:
        return Estimate(share, None)
    usual = sum(per_frame.values()) / len(per_frame)
    seconds_left = (
        max(0, run.total_frames - _frames(status)) * per_frame.get(run.agent_name, usual)
        for run, status in runs
    )
    return Estimate(share, sum(seconds_left))


def _frames(status: Status | None) -> int:
    return status["environment_frames"] if status else 0


class Watcher:
    """A context that shows the progress: live on a terminal, otherwise in occasional lines.

    Attributes:
      failed: the message about a run that failed.
    """

    def __init__(self, runs: Sequence[RunProgress]) -> None:
        self.failed: str | None = None
        self._runs = runs
        self._console = Console()
        self._current: RunProgress | None = None
        self._next_line_s = 0.0
        self._last_line = ""
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[note]}"),
            console=self._console,
            auto_refresh=False,
        )
        agents = dict.fromkeys(run.agent_name for run in runs)
        self._tasks = {agent: self._add(agent, agent) for agent in agents}
        self._all = self._add("all", None)

    def __enter__(self) -> Watcher:
        if self._console.is_terminal:
            self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.update()
        self._progress.stop()

    def begin(self, run: RunProgress) -> None:
        """Tells the watcher that this run trains now."""
        self._current, self._next_line_s = run, 0.0

    def update(self) -> None:
        """Shows the current state of the runs' status files."""
        statuses = [(run, run.status()) for run in self._runs]
        if self._console.is_terminal:
            self._draw(statuses)
        elif self._current is not None and time.monotonic() >= self._next_line_s:
            self._next_line_s = time.monotonic() + self._current.interval_s
            number = self._runs.index(self._current) + 1
            run = f"run {number} of {len(self._runs)}, {self._current.agent_name}"
            self._print(f"{run}, {_note(self._current)}; all: {_all(statuses)}")

    def _print(self, line: str) -> None:
        if line != self._last_line:
            print(line, flush=True)
        self._last_line = line

    def _add(self, description: str, agent: str | None) -> TaskID:
        total = sum(run.total_frames for run in self._runs if agent in (None, run.agent_name))
        return self._progress.add_task(description, total=total, note="")

    def _draw(self, statuses: Sequence[tuple[RunProgress, Status | None]]) -> None:
        for agent, task in self._tasks.items():
            own = [pair for pair in statuses if pair[0].agent_name == agent]
            begun = [run for run, status in own if status is not None or run is self._current]
            done = sum(_frames(status) for _, status in own)
            self._progress.update(task, completed=done, note=_note(begun[-1]) if begun else "")
        done = sum(_frames(status) for _, status in statuses)
        self._progress.update(self._all, completed=done, note=_left(estimate(statuses)))
        self._progress.refresh()


def _note(run: RunProgress) -> str:
    status = run.status()
    row = (status["row"] if status else None) or {}
    text = f"seed {run.seed}: {_frames(status) / run.total_frames:.0%}"
    if row.get("agent_steps_per_s") is not None:
        text += f", {row['agent_steps_per_s']:,.0f} agent steps/s"
    if row.get("episode_return_mean") is not None:
        text += f", return {row['episode_return_mean']:.2f}"
    return text


def _all(statuses: Sequence[tuple[RunProgress, Status | None]]) -> str:
    progress = estimate(statuses)
    return ", ".join(part for part in (f"{progress.share:.0%}", _left(progress)) if part)


def _left(found: Estimate) -> str:
    if found.seconds_left is None or found.share >= 1:
        return ""
    return f"about {duration(found.seconds_left)} left"
