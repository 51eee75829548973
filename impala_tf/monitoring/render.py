"""Renders a run's status: as a panel for terminals, and as one line for logs."""

from __future__ import annotations

import functools
import math
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from impala_tf.monitoring.metrics import Row, bottleneck_of
from impala_tf.monitoring.rows import GAMES
from impala_tf.monitoring.status_file import ActorStatus, Status
from impala_tf.printable import duration

SILENT_AFTER_S = 30.0
"""Seconds without contact after which a process is highlighted."""

_WIDTH = 100  # columns
_MOST_TROUBLES = 3  # lines about actors
_NO_STATUS = "waiting for the learner"
_STATE_STYLES = {"training": "green", "done": "bold green", "failed": "bold red"}
FINAL_STATES = ("stopped", "done", "failed")
_IN_A_LINE = ("speed", "return", "evaluation", "policy lag", "learner", "updates")


def plain_line(status: Status | None) -> str:
    """Returns a status as one line."""
    if status is None:
        return f"starting: {_NO_STATUS}"
    if status["state"] == "starting":
        return ", ".join([f"starting: {_before_training(status)}", *troubles(status)])
    state = "" if status["state"] == "training" else f"{status['state']}: "
    facts = _facts(status)
    parts = [f"{label} {facts[label]}" for label in _IN_A_LINE if facts.get(label)]
    frames = f"{state}{_share(status):.0%} {frames_of(status)}"
    return ", ".join(filter(None, [frames, *parts, *troubles(status), _remaining(status)]))


def wide_console() -> Console:
    """Returns standard output for tables, which a file gets in the width of a terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=_WIDTH)


def plain_table(*headings: str, texts: int = 1) -> Table:
    """Returns an empty table without borders. Columns after the first `texts` hold numbers."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for number, heading in enumerate(headings):
        is_text = number < texts
        table.add_column(heading, justify="left" if is_text else "right", no_wrap=not is_text)
    return table


def panel(status: Status | None, now_s: float, max_actors: int) -> RenderableType:
    """Returns a status as a panel with a progress bar, the main numbers and up to `max_actors`.

    `now_s` is Unix time by the clock of the machine that wrote the status; without a status,
    seconds since the start.
    """
    if status is None:
        text = f"{_NO_STATUS}, which imports TensorFlow and makes the network: {duration(now_s)}"
        return Panel(Text(text), title="impala_tf", width=_WIDTH, padding=(0, 1))
    parts: list[RenderableType] = [_progress(status), Text()]
    if status["state"] == "starting":
        waited = duration(status.get("wall_time_s", 0.0))
        parts.append(Text(f"{_before_training(status)}: {waited}"))
    else:
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="dim", no_wrap=True)
        grid.add_column(no_wrap=True, overflow="ellipsis")
        for label, text in _facts(status).items():
            if text:
                grid.add_row(label, Text(text))
        parts.append(grid)
    running = status["state"] not in FINAL_STATES
    age_s = now_s - status["updated_unix_s"]
    if running and age_s > SILENT_AFTER_S:
        parts.append(Text(f"no status from the learner for {duration(age_s)}", style="red"))
    parts += [Text(text, style="red") for text in troubles(status)]
    if running and status.get("learners"):
        parts += [Text(), _learners(status["learners"])]
    if running and status["actors"]:
        parts += [Text(), _actors(status["actors"], now_s, max_actors)]
    title = (status["level_name"], status["agent_name"], status.get("precision"))
    return Panel(
        Group(*parts),
        title=Text(f" {' · '.join(filter(None, title))} ", style="bold"),
        subtitle=Text(f" {status['logdir']} ", style="dim"),
        width=_WIDTH,
        padding=(0, 1),
    )


def _before_training(status: Status) -> str:
    replay = status.get("replay")
    if not replay or not replay["steps"]:
        return "waiting for the first unrolls"
    if not replay["missing"]:
        return f"learning from a replay of {replay['steps']:,} agent steps"
    needed = replay["steps"] + replay["missing"]
    return f"filling the replay: {replay['steps']:,} of {needed:,} agent steps before learning"


def troubles(status: Status) -> list[str]:
    """Returns what keeps a run from training or from being saved, and since when, as lines."""
    lines = []
    if (away := status.get("away_learners")) and status["state"] not in FINAL_STATES:
        here = status.get("num_learners", 1)
        names = [
            f"learner-{each['learner']} (since {_clock(each['since_unix_s'])})" for each in away
        ]
        all_of = here + len(away)
        lines.append(f"training with {here} of {all_of} learners; away: {', '.join(names)}")
    if status["state"] == "training" and (since_s := status.get("starving_since_unix_s")):
        lines.append(f"starving since {_clock(since_s)}: no unrolls from actors")
    if trouble := status.get("storage_trouble"):
        lines.append(f"{trouble['text']} (since {_clock(trouble['since_unix_s'])})")
    of_actors = [
        f"{actor['name']}: {actor['trouble']}" for actor in status["actors"] if actor.get("trouble")
    ]
    if (hidden := len(of_actors) - _MOST_TROUBLES) > 0:
        of_actors[_MOST_TROUBLES:] = [f"and {hidden} more actors"]
    return lines + of_actors


def _clock(unix_s: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(unix_s))


def _share(status: Status) -> float:
    """Returns the progress, rounded down to whole percents, so that 100 % means done."""
    share = status["environment_frames"] / status["total_environment_frames"]
    return min(1.0, math.floor(share * 100) / 100)


def _remaining(status: Status) -> str:
    """Returns the remaining training time; '': unknown."""
    left = status["total_environment_frames"] - status["environment_frames"]
    frames_per_s = (status["row"] or {}).get("frames_per_s")
    if status["state"] != "training" or left <= 0 or not frames_per_s:
        return ""
    # At least 1 s: if the next update takes long, "0 s left" would look like a run that hangs.
    return f"{duration(max(1.0, left / frames_per_s))} left"


def _mean(value: float) -> str:
    return f"{value:.2f}" if abs(value) < 10 else f"{value:,.1f}"


def mean_return(row: Mapping[str, Any]) -> str:
    """Returns the mean return of a row of metrics, and over how many games."""
    if not (games := min(row.get("episodes") or 0, GAMES)):
        return "no episode finished yet"
    return f"{_mean(row['episode_return_mean'])} (last {games} episodes)"


def skipped(row: Mapping[str, Any]) -> str:
    """Returns how many updates were skipped, and why; '' if none were."""
    updates = row.get("updates_skipped")
    return f"{updates:,} updates skipped for gradients that were not finite" if updates else ""


def evaluation(status: Status) -> str:
    """Returns the newest result of --eval_every as a short text; '' if there is none."""
    last = status.get("evaluation")
    if last is None:
        return ""
    parts = []
    if (mean := last["return_mean"]) is not None:
        games = f"{last['episodes']} games, {last['played']}"
        scale = "normalised, " if last.get("normalized") else ""
        parts.append(f"{_mean(mean)} ({scale}{games}, at {last['environment_frames']:,} frames)")
    if last["awaited"]:
        parts.append("now with the last checkpoint (Ctrl-C skips that)")
    return "; ".join(parts)


def _progress(status: Status) -> Table:
    frames, total = status["environment_frames"], status["total_environment_frames"]
    remaining = _remaining(status)
    line = Table.grid(padding=(0, 2), expand=True)
    line.add_column(no_wrap=True)
    line.add_column(ratio=1)
    line.add_column(no_wrap=True, justify="right")
    line.add_row(
        Text(status["state"], style=_STATE_STYLES.get(status["state"], "yellow")),
        ProgressBar(total=total, completed=min(frames, total)),
        ", ".join(filter(None, [f"{_share(status):.0%}", remaining])),
    )
    return line


def frames_of(status: Status) -> str:
    """Returns how far a run is."""
    return f"{status['environment_frames']:,} of {status['total_environment_frames']:,} frames"


def _facts(status: Status) -> dict[str, str]:
    """Returns {label: text} of what is known of a run that trains."""
    repeats, checkpoint, row = status["frames_per_step"], status["checkpoint"], status["row"]
    facts = {
        "progress": f"{frames_of(status)} (frames per agent step: {repeats})",
        "elapsed": duration(status["wall_time_s"]) if "wall_time_s" in status else "",
    }
    if row is not None:
        number = functools.partial(_number, row)
        limit, replay = bottleneck_of(row), status.get("replay")
        facts |= {
            "speed": "measuring"
            if row.get("agent_steps_per_s") is None
            else f"{row['agent_steps_per_s']:,.0f} agent steps/s"
            f" = {number('frames_per_s', ',.0f')} frames/s",
            "return": mean_return(row),
            "entropy": f"{row['entropy']:.3g} nats" if row.get("entropy") is not None else "",
            "policy lag": f"mean {number('policy_lag_mean', '.1f')},"
            f" max {number('policy_lag_max', '.0f')} updates",
            "replay": "{steps:,} of {capacity:,} agent steps".format(**replay) if replay else "",
            "limited by": "{} ({})".format(*limit) if limit else "",
            "learner": f"idle {number('learner_idle_fraction', '.0%')},"
            f" queue {number('queue_size', '.0f')} of {status['queue_capacity']} unrolls",
            "updates": skipped(row),
        }
    facts["evaluation"] = evaluation(status)
    if checkpoint:
        at = f"at {checkpoint['environment_frames']:,} frames"
        facts["checkpoint"] = f"{Path(checkpoint['path']).name} {at}"
    return facts


def _learners(learners: Sequence[Row]) -> RenderableType:
    columns = {
        "agent steps/s": ("agent_steps_per_s", ",.0f"),
        "lag": ("policy_lag_mean", ".1f"),
        "queue": ("queue_size", ".0f"),
        "idle": ("learner_idle_fraction", ".0%"),
        "all-reduce": ("learner_all_reduce_fraction", ".0%"),
    }
    table = plain_table("learner", *columns)
    for row in learners:
        numbers = [_number(row, *column) for column in columns.values()]
        table.add_row(f"learner-{row['learner']}", *numbers)
    return table


def _number(row: Row, name: str, form: str) -> str:
    value = row.get(name)
    return "-" if value is None else format(value, form)


def _actors(actors: list[ActorStatus], now_s: float, max_actors: int) -> RenderableType:
    def silent(actor: ActorStatus) -> bool:
        is_present = actor.get("present", False)
        return not is_present and now_s - actor["last_contact_unix_s"] > SILENT_AFTER_S

    def order(actor: ActorStatus) -> tuple[bool, list[int], str]:
        # Silent actors come first; actor-10 comes after actor-9.
        numbers = [int(digits) for digits in re.findall(r"\d+", actor["name"])]
        return (not silent(actor), numbers, actor["name"])

    broke = any(actor.get("environment_restarts") for actor in actors)
    headings = ("agent steps/s", "lag", "waits", "last seen", *(["levels broke"] if broke else []))
    table = plain_table("actor", "host", *headings, texts=2)
    for actor in sorted(actors, key=order)[:max_actors]:
        table.add_row(
            actor["name"],
            Text(actor["host"], no_wrap=True, overflow="ellipsis"),
            f"{actor['agent_steps_per_s']:,.0f}",
            f"{actor['parameter_lag']:.1f}",
            f"{actor['push_wait_fraction']:.0%}",
            f"{duration(max(0.0, now_s - actor['last_contact_unix_s']))} ago",
            *([str(actor.get("environment_restarts", 0))] if broke else []),
            style="red" if silent(actor) else "",
        )
    hidden = len(actors) - max_actors
    return Group(table, Text(f"and {hidden} more", style="dim")) if hidden > 0 else table
