"""`impala benchmark`: measures the parts of a run on this machine, and finds what limits it."""

from __future__ import annotations

import csv
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from impala_tf import config as configs
from impala_tf.config import (
    Config,
    ConfigError,
    Given,
    cores_here,
    tf_config,
    user_commands,
)
from impala_tf.config.flags import HERE
from impala_tf.logdir import Logdir
from impala_tf.measure import parts as measuring
from impala_tf.measure.parts import Measured, What
from impala_tf.monitoring.metrics import ADVICE, bottleneck_of
from impala_tf.monitoring.render import plain_table, wide_console
from impala_tf.processes.common import resolve
from impala_tf.types import EnvironmentSpec

_PARTS: dict[str, What] = {
    "environments": "environment",
    "inference": "inference",
    "updates": "update",
}
"""{name of a part, as in `ADVICE`: what is measured}."""
_PART_S, _WHOLE_S = 4.0, 20.0
_WARM_UP_ROWS = 2
_ROW_S = 2.0
_START_S = 300.0

_OF_A_REAL_RUN = (
    "track",
    "callbacks",
    "stop_at_return",
    "eval_every",
    "video_every",
    "start_from",
)
"""Flags that do something besides training, such as writing elsewhere, or that end a run."""


def main(given: Given) -> int:
    """Measures and prints; returns 0.

    Raises:
      ConfigError: flags or a level that no run could use.
    """
    # With flags of other machines, the whole run would train there.
    given = given.without(*configs.flags_of(HERE))
    flags = configs.to_flags(given.without(*_OF_A_REAL_RUN))
    config, spec = resolve(given)
    configs.check_batches(config)
    parts = {name: _measured(what, config, spec) for name, what in _PARTS.items()}
    print("measuring a whole run ...", file=sys.stderr, flush=True)
    row = _medians_of_run(flags)
    core_us = sum(part.core_us_per_step for part in parts.values())
    limit, why = bottleneck_of(row) or ("cores", "")
    if limit == "cores":  # which all parts share on this machine
        limit = max(parts, key=lambda name: parts[name].core_us_per_step)
        why = f"{parts[limit].core_us_per_step / core_us:.0%} of the cores' time"
    totals = {
        "level_name": spec.level_name,
        "agent_name": config.agent.agent_name,
        "cores": cores_here(),
        # Agent steps/s that the parts together would allow on these cores, and of a whole run:
        "ceiling": 1e6 * cores_here() / core_us,
        "whole": row["agent_steps_per_s"],
        "limit": limit,
        "why": why,
        "advice": ADVICE[limit],
    }
    console = wide_console()
    console.print(_table(parts, totals))
    text = (
        "\n{agent_name} on {level_name}, {cores} cores.\n"
        "limited by: {limit} ({why})\nfaster with: {advice}"
    )
    console.print(text.format_map(totals), highlight=False)
    return 0


def _measured(what: What, config: Config, spec: EnvironmentSpec) -> Measured:
    """Returns the measurements of a part by itself, for each agent step of a run."""
    part = measuring.measure(what, config, spec, _PART_S)
    if what != "update" or configs.algorithm(config.loss.algorithm).replays:
        return part
    return part._replace(steps_per_s=part.steps_per_s / config.optimizer.updates_per_batch)


def _medians_of_run(flags: list[str]) -> dict[str, float]:
    """Returns the median of each metric of a run on this machine, once it trains.

    Raises:
      ConfigError: the run has ended, or is too slow; with the last lines of its output.
    """
    with tempfile.TemporaryDirectory(prefix="impala_tf-benchmark-") as folder:
        command = [
            sys.executable,
            *user_commands.program(),
            *flags,
            f"--logdir={folder}/run",
            f"--metrics_interval_s={_ROW_S:g}",
            "--total_environment_frames=1000000000000",
        ]
        # TF_CONFIG would give the run a role.
        environment = {k: v for k, v in os.environ.items() if k != tf_config.VARIABLE}
        with tempfile.TemporaryFile("w+") as output:
            run = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, env=environment
            )
            try:
                deadline = time.monotonic() + _START_S + _WHOLE_S
                while len(rows := _rows(Path(folder, "run"))) * _ROW_S < _WHOLE_S:
                    if run.poll() is not None or time.monotonic() > deadline:
                        output.seek(0)
                        raise ConfigError(output.read().splitlines()[-5:] or ["no run started"])
                    time.sleep(_ROW_S / 2)
            finally:
                run.terminate()
                run.wait()
    values = {name: [float(row[name]) for row in rows if row[name]] for name in rows[0]}
    return {name: statistics.median(column) for name, column in values.items() if column}


def _rows(logdir: Path) -> list[dict[str, str]]:
    path = Logdir(logdir).metrics
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))[_WARM_UP_ROWS:]


def _table(parts: Mapping[str, Measured], totals: Mapping[str, Any]) -> Table:
    figures = ("agent steps/s", "core µs a step", "share", "peak memory")
    table = plain_table("part, alone", "on", *figures, texts=2)
    core_us = sum(part.core_us_per_step for part in parts.values())
    for name, part in parts.items():
        table.add_row(
            name,
            part.on,
            f"{part.steps_per_s:,.0f}",
            f"{part.core_us_per_step:,.0f}",
            f"{part.core_us_per_step / core_us:.0%}",
            f"{part.peak_memory_mb:,.0f} MiB",
        )
    table.add_section()
    table.add_row("all on the cores", "", f"{totals['ceiling']:,.0f}", f"{core_us:,.0f}", "", "")
    table.add_row("a whole run", "", f"{totals['whole']:,.0f}", "", "", "", style="bold")
    return table
