"""--mode=benchmark: how fast is each part of a run on this machine, and what limits the whole?"""

from __future__ import annotations

import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from impala_tf import config as configs
from impala_tf.config import Config, ConfigError, resolved, user_commands
from impala_tf.logdir import Logdir
from impala_tf.measure.acting import Measured
from impala_tf.measure.in_processes import What, measure
from impala_tf.monitoring.bottleneck import ADVICE
from impala_tf.processes.common import resolve
from impala_tf.types import EnvironmentSpec

_SCRIPT = user_commands.PROJECT / user_commands.SCRIPT
_WIDTH = 100  # columns, if the output is not a terminal
_PART_SHARE = 0.2  # of --benchmark_seconds
_WARM_UP_ROWS = 2
_ROW_S = 2.0
_START_S = 300.0
_LABELS: dict[What, str] = {
    "environment": "environments",
    "inference": "inference",
    "transport": "transport",
    "update": "updates",
}
"""What is measured, by the names of `ADVICE`."""


class Part(NamedTuple):
    """A part of a run, measured alone."""

    name: str
    agent_steps_per_s: float
    core_us_per_step: float  # microseconds of a core for every agent step of a run
    device: str
    peak_memory_mb: float  # of the process that was measured
    precision: str = ""  # of the torso, if it computes in this part


class Result(NamedTuple):
    """A benchmark's result, JSON-able with `_asdict`."""

    level_name: str
    agent_name: str
    frames_per_step: int
    cores: int
    parts: list[Part]
    checkpoint_s: float  # seconds to write one
    bytes_up: float  # from an actor to its learner, an agent step
    bytes_down: float  # the other way
    ceiling: float  # agent steps/s that the parts allow together on these cores
    whole: float  # agent steps/s of a run
    limit: str  # a key of ADVICE
    limit_share: float  # of the cores' time that the parts need


def main(config: Config) -> int:
    """Measures and prints; returns 0.

    Raises:
      ConfigError: flags or a level that a run could not use either.
    """
    flags = configs.to_flags(configs.replace(config, mode="train", json=False))
    config, spec = resolve(config)
    configs.check_batches(config)
    console = Console(stderr=config.benchmark.json)
    if not console.is_terminal:
        console = Console(width=_WIDTH, stderr=config.benchmark.json)
    result = _measure(config, spec, flags, console)
    if config.benchmark.json:
        parts = [part._asdict() for part in result.parts]
        print(json.dumps({**result._asdict(), "parts": parts, "advice": ADVICE[result.limit]}))
        return 0
    console.print(_table(result))
    for line in _lines(result):
        console.print(line, highlight=False)
    return 0


def ceiling(parts: list[Part], cores: int) -> float:
    """Returns the agent steps/s that these parts allow together.

    Everything that computes on the cores shares them; a GPU works beside them.
    """
    on_cores = 1e6 * cores / sum(part.core_us_per_step for part in parts)
    beside = [part.agent_steps_per_s for part in parts if part.device == "GPU"]
    return min([on_cores, *beside])


def uses_measured(config: Config) -> int:
    """Returns how often a run takes the update that `measured_speed.updates` measures."""
    return 1 if config.loss.algorithm == "dqn" else resolved(config.optimizer.updates_per_batch)


def _measure(config: Config, spec: EnvironmentSpec, flags: list[str], console: Console) -> Result:
    seconds = _PART_SHARE * config.benchmark.benchmark_seconds
    uses = uses_measured(config)
    alone: dict[What, Measured] = {}
    for what, name in _LABELS.items():
        with console.status(f"measuring {name} alone"):
            alone[what] = measure(what, config, spec, seconds)
    parts = [
        _part(_LABELS[what], found, uses if what == "update" else 1)
        for what, found in alone.items()
    ]
    with console.status("measuring checkpoints"):
        checkpoint_s = 1 / measure("checkpoint", config, spec, seconds).steps_per_s
    with console.status("measuring a whole run"):
        whole = _whole(flags, config.benchmark.benchmark_seconds)
    cores = len(os.sched_getaffinity(0))
    largest = max(parts, key=lambda part: part.core_us_per_step)
    return Result(
        level_name=spec.level_name,
        agent_name=config.agent.agent_name,
        frames_per_step=spec.frames_per_step,
        cores=cores,
        parts=parts,
        checkpoint_s=checkpoint_s,
        bytes_up=alone["transport"].bytes_up,
        bytes_down=alone["transport"].bytes_down / config.process.parameter_lag,
        ceiling=ceiling(parts, cores),
        whole=whole,
        limit=largest.name,
        limit_share=largest.core_us_per_step / sum(part.core_us_per_step for part in parts),
    )


def _part(name: str, found: Measured, uses: int) -> Part:
    return Part(
        name,
        found.steps_per_s / uses,
        1e6 * found.cores * uses / found.steps_per_s,
        found.device,
        found.peak_memory / 2**20,
        found.precision,
    )


def _whole(flags: list[str], seconds: float) -> float:
    """Returns the median agent steps/s of a run on this machine, once it trains.

    Raises:
      ConfigError: the run has ended; with the last lines that it printed.
    """
    with tempfile.TemporaryDirectory(prefix="impala_tf-benchmark-") as folder:
        command = [sys.executable, str(_SCRIPT), *flags, f"--logdir={folder}/run",
                   f"--metrics_interval_s={_ROW_S:g}",
                   "--total_environment_frames=1000000000000"]  # fmt: skip
        with tempfile.TemporaryFile("w+") as output:
            run = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
            try:
                deadline = time.monotonic() + _START_S + seconds
                while len(rates := _rates(Path(folder, "run"))) * _ROW_S < seconds:
                    if run.poll() is not None or time.monotonic() > deadline:
                        output.seek(0)
                        raise ConfigError(output.read().splitlines()[-5:] or ["no run started"])
                    time.sleep(_ROW_S / 2)
            finally:
                run.terminate()
                run.wait()
    return statistics.median(rates)


def _rates(logdir: Path) -> list[float]:
    path = Logdir(logdir).metrics
    if not path.exists():
        return []
    with path.open(newline="") as file:
        cells = [row.get("agent_steps_per_s") for row in csv.DictReader(file)]
    return [float(cell) for cell in cells[_WARM_UP_ROWS:] if cell]


def _table(result: Result) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("part, alone")
    table.add_column("on")
    for heading in ("agent steps/s", "core µs a step", "share", "peak memory"):
        table.add_column(heading, justify="right")
    total = sum(part.core_us_per_step for part in result.parts)
    for part in result.parts:
        table.add_row(
            part.name,
            ", ".join(filter(None, (part.device, part.precision))),
            f"{part.agent_steps_per_s:,.0f}",
            f"{part.core_us_per_step:,.0f}",
            f"{part.core_us_per_step / total:.0%}",
            f"{part.peak_memory_mb:,.0f} MiB" if part.peak_memory_mb else "unknown",
        )
    table.add_section()
    table.add_row("all parts", "", f"{result.ceiling:,.0f}", f"{total:,.0f}", "100%", "")
    table.add_row("a whole run", "", f"{result.whole:,.0f}", "", "", "", style="bold")
    return table


def _lines(result: Result) -> list[str]:
    return [
        "",
        f"{result.agent_name} on {result.level_name}: a run reaches"
        f" {result.whole / result.ceiling:.0%} of the {result.ceiling:,.0f} agent steps/s that its"
        f" parts allow on {result.cores} cores.",
        f"On the wire, an agent step is {result.bytes_up:,.0f} bytes up and at most"
        f" {result.bytes_down:,.0f} down. A checkpoint takes {result.checkpoint_s:.2f} s.",
        f"limited by: {result.limit} ({result.limit_share:.0%} of the cores' time)",
        f"faster with: {ADVICE[result.limit]}",
    ]
