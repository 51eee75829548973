"""--mode=benchmark: measures the parts of a run on this machine, and finds what limits it."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from impala_tf import config as configs
from impala_tf.config import (
    ClusterConfig,
    Config,
    ConfigError,
    Given,
    cores_here,
    tf_config,
    user_commands,
)
from impala_tf.logdir import Logdir
from impala_tf.measure import in_processes
from impala_tf.measure.acting import Measured
from impala_tf.measure.in_processes import What, console_of, measure_each, telling
from impala_tf.monitoring.bottleneck import ADVICE
from impala_tf.monitoring.render import plain_table
from impala_tf.processes.common import resolve
from impala_tf.types import EnvironmentSpec

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
"""{what is measured: its name in `ADVICE`}."""


_OF_A_REAL_RUN = (
    "mirror", "track", "callbacks", "stop_at_return", "eval_every", "video_every", "fresh",
    "heartbeat_path", "start_from",
)  # fmt: skip
"""Flags that do something besides training, such as writing elsewhere, or that end a run."""
_OF_OTHER_MACHINES = (
    "job_name", "task", "learner_hosts", "actor_hosts", "credentials",
    *(field.name for field in dataclasses.fields(ClusterConfig)),
)  # fmt: skip
"""Flags of runs on several machines; with them, the whole run would train there."""


def main(given: Given) -> int:
    """Measures and prints; returns 0.

    Raises:
      ConfigError: flags or a level that no run could use.
    """
    given = given.without(*_OF_OTHER_MACHINES)
    flags = configs.to_flags(given.without("mode", "json", *_OF_A_REAL_RUN))
    config, spec = resolve(given)
    configs.check_batches(config)
    console = console_of(stderr=config.benchmark.json)
    parts, totals = _measure(config, spec, flags, console)
    if config.benchmark.json:
        rows = [_json_row(name, part) for name, part in parts.items()]
        print(json.dumps({**totals, "parts": rows, "advice": ADVICE[totals["limit"]]}))
        return 0
    console.print(_table(parts, totals))
    for line in _lines(totals):
        console.print(line, highlight=False)
    return 0


def ceiling(parts: Mapping[str, Measured], cores: int) -> float:
    """Returns the agent steps/s that these parts allow together.

    All parts share the cores; a GPU works in addition.
    """
    gpu = slower_gpu(parts, cores)
    return _cores_rate(parts, cores) if gpu is None else parts[gpu].steps_per_s


def slower_gpu(parts: Mapping[str, Measured], cores: int) -> str | None:
    """Returns the name of the slowest part on the GPU; None if the cores allow fewer steps/s."""
    on_gpu = [name for name, part in parts.items() if part.device == "GPU"]
    slowest = min(on_gpu, key=lambda name: parts[name].steps_per_s, default=None)
    if slowest is None or parts[slowest].steps_per_s >= _cores_rate(parts, cores):
        return None
    return slowest


def uses_measured(config: Config) -> int:
    """Returns how many updates as measured by `learning.update` a run makes per batch."""
    replays = configs.algorithm(config.loss.algorithm).replays
    return 1 if replays else config.optimizer.updates_per_batch


def _measure(
    config: Config, spec: EnvironmentSpec, flags: list[str], console: Console
) -> tuple[dict[str, Measured], dict[str, Any]]:
    """Returns the parts of a run, each measured by itself, and JSON-able totals."""
    seconds = _PART_SHARE * config.benchmark.benchmark_seconds
    parts = measure_each(_LABELS, config, spec, seconds, console)
    with telling("measuring updates of one unroll", console):
        fixed_s = _fixed_s(config, spec, seconds, parts["updates"])
    updates_per_s = parts["updates"].steps_per_s / uses_measured(config)
    parts["updates"] = parts["updates"]._replace(steps_per_s=updates_per_s)
    with telling("measuring checkpoints", console):
        checkpoint = in_processes.measure("checkpoint", config, spec, seconds)
    with telling("measuring a whole run", console):
        whole = _whole(flags, config.benchmark.benchmark_seconds)
    cores = cores_here()
    gpu = slower_gpu(parts, cores)
    limit = gpu or max(parts, key=lambda name: parts[name].core_us_per_step)
    return parts, {
        "level_name": spec.level_name,
        "agent_name": config.agent.agent_name,
        "frames_per_step": spec.frames_per_step,
        "cores": cores,
        "checkpoint_s": 1 / checkpoint.steps_per_s,
        # The part of a gradient step that does not grow with its batch. None: no unrolls in it.
        "fixed_update_s": fixed_s,
        # From an actor to its learner and back, per agent step:
        "bytes_up": parts["transport"].bytes_up,
        "bytes_down": parts["transport"].bytes_down / config.process.parameter_lag,
        # Agent steps/s that the parts together allow on these cores, and those of a whole run:
        "ceiling": ceiling(parts, cores),
        "whole": whole,
        "limit": limit,
        # The limiting part's share of the cores' time. None: the GPU is the limit.
        "limit_share": None if gpu else parts[limit].core_us_per_step / _core_us(parts),
    }


def _fixed_s(
    config: Config, spec: EnvironmentSpec, seconds: float, updates: Measured
) -> float | None:
    """Returns the seconds of a gradient step that do not depend on the size of its batch."""
    optimizer = config.optimizer
    size = optimizer.batch_size
    if size == 1 or configs.algorithm(config.loss.algorithm).replays:
        return None
    smallest = configs.replace(config, batch_size=1, minibatches=1, micro_batches=1)
    of_one = in_processes.measure("update", smallest, spec, seconds)
    one_s = optimizer.unroll_length / of_one.steps_per_s
    all_s = size * optimizer.unroll_length / updates.steps_per_s
    return max(0.0, one_s - (all_s - one_s) / (size - 1))


def _cores_rate(parts: Mapping[str, Measured], cores: int) -> float:
    """Returns the agent steps/s that the cores allow, if all parts share them."""
    return 1e6 * cores / _core_us(parts)


def _core_us(parts: Mapping[str, Measured]) -> float:
    """Returns the microseconds of one core that all parts need per agent step."""
    return sum(part.core_us_per_step for part in parts.values())


def _json_row(name: str, part: Measured) -> dict[str, Any]:
    return {
        "name": name,
        "agent_steps_per_s": part.steps_per_s,
        "core_us_per_step": part.core_us_per_step,
        "device": part.device,
        "peak_memory_mb": part.peak_memory_mb,
        "precision": part.precision,
    }


def _whole(flags: list[str], seconds: float) -> float:
    """Returns the median agent steps/s of a run on this machine, once it trains.

    Raises:
      ConfigError: the run has ended, or is too slow; with the last lines of its output.
    """
    with tempfile.TemporaryDirectory(prefix="impala_tf-benchmark-") as folder:
        command = [sys.executable, *user_commands.program(), *flags, f"--logdir={folder}/run",
                   f"--metrics_interval_s={_ROW_S:g}",
                   "--total_environment_frames=1000000000000"]  # fmt: skip
        with tempfile.TemporaryFile("w+") as output:
            run = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, env=_without_role(os.environ)
            )
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


def _without_role(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns a process's variables without TF_CONFIG, which would give the run a role."""
    return {name: value for name, value in environment.items() if name != tf_config.VARIABLE}


def _rates(logdir: Path) -> list[float]:
    path = Logdir(logdir).metrics
    if not path.exists():
        return []
    with path.open(newline="") as file:
        cells = [row.get("agent_steps_per_s") for row in csv.DictReader(file)]
    return [float(cell) for cell in cells[_WARM_UP_ROWS:] if cell]


def _table(parts: Mapping[str, Measured], totals: Mapping[str, Any]) -> Table:
    figures = ("agent steps/s", "core µs a step", "share", "peak memory")
    table = plain_table("part, alone", "on", *figures, texts=2)
    total = _core_us(parts)
    for name, part in parts.items():
        table.add_row(
            name,
            part.on,
            f"{part.steps_per_s:,.0f}",
            f"{part.core_us_per_step:,.0f}",
            f"{part.core_us_per_step / total:.0%}",
            f"{part.peak_memory_mb:,.0f} MiB" if part.peak_memory_mb else "unknown",
        )
    table.add_section()
    table.add_row("all parts", "", f"{totals['ceiling']:,.0f}", f"{total:,.0f}", "100%", "")
    table.add_row("a whole run", "", f"{totals['whole']:,.0f}", "", "", "", style="bold")
    return table


def _lines(totals: Mapping[str, Any]) -> list[str]:
    return [
        "",
        "{agent_name} on {level_name}: a run reaches {reached:.0%} of the {ceiling:,.0f} agent"
        " steps/s that its parts allow on {cores} cores.".format(
            reached=totals["whole"] / totals["ceiling"], **totals
        ),
        "On the wire, an agent step is {bytes_up:,.0f} bytes up and at most {bytes_down:,.0f} down."
        " A checkpoint takes {checkpoint_s:.2f} s.".format_map(totals),
        *_fixed_line(totals["fixed_update_s"]),
        f"limited by: {totals['limit']} ({_share(totals['limit_share'])})",
        f"faster with: {ADVICE[totals['limit']]}",
    ]


def _share(limit_share: float | None) -> str:
    return "the GPU" if limit_share is None else f"{limit_share:.0%} of the cores' time"


def _fixed_line(fixed_s: float | None) -> list[str]:
    if fixed_s is None:
        return []
    return [f"A gradient step takes {1e3 * fixed_s:.1f} ms, however small its batch is, and longer"
            " for a larger one."]  # fmt: skip
