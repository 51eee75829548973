"""`impala compare`: trains variants of a run with several seeds, and compares them.

    impala compare --level_name=CartPole-v1 --seeds=1,2,3 -- --core=lstm -- --algorithm=ppo

The flags before the first -- are the first variant. Each group after a -- is another one, with its
flags besides. Several --level_name are several levels, each with runs of its own. Runs of one seed
follow each other before those of the next seed, so that all variants meet the same conditions. The
same command resumes. At the end: a table, and a report.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import math
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.integrate

from impala_tf.config import ConfigError, split
from impala_tf.machine.process_lifetime import StopRequest
from impala_tf.reporting import runs, statistics
from impala_tf.reporting.runs import Run
from impala_tf.studies import child_runs

_LAST_SHARE = 0.2  # of a run, over which its returns are averaged
_BUSY = 0.3  # cores that other programs use
_POLL_S = 0.25
_COLUMNS = (
    "level",
    "variant",
    "seeds",
    "last fifth",
    "whole run",
    "steps/s",
    "minutes",
    "log ratio",
    "low",
    "high",
    "P(better)",
)


def main(words: Sequence[str]) -> int:
    """Trains what is missing, then compares; returns 0, or 1 if a run failed or was stopped.

    Raises:
      ConfigError: an argument is wrong, or the folder holds other runs.
    """
    options, groups = _parse(words)
    variants = {_label(group): [*groups[0], *group] for group in ([], *groups[1:])}
    if len(variants) <= len(groups) - 1:
        raise ConfigError("compare: two variants have the same flags")
    trials = {
        options.to / f"level-{level:02}" / f"variant-{variant:02}" / f"seed-{seed}": [
            f"--level_name={options.level_name[level]}",
            *flags,
            f"--seed={seed}",
        ]
        for seed, level, (variant, flags) in itertools.product(
            options.seeds, range(len(options.level_name)), enumerate(variants.values())
        )
    }
    for folder, flags in itertools.islice(trials.items(), len(trials) // len(options.seeds)):
        child_runs.refuse_wrong_flags([*flags, f"--logdir={folder}"])
    child_runs.claim_folder(
        "to", options.to, {"levels": options.level_name, "variants": list(variants.values())}
    )
    if (busy := os.getloadavg()[0]) > _BUSY and options.jobs == 1:
        print(f"other programs use about {busy:.1f} cores, which makes rates and minutes worse")
    stop = StopRequest()
    stop.install()
    failed = _train(trials, options.jobs, stop)
    if stop():
        print("stopped; the same command resumes")
        return 1
    table = _table(options, list(variants))
    for row in table:
        print("  ".join(cell.ljust(12) for cell in row).rstrip())
    with (options.to / "comparison.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(table)
    report = [f"--logdir={options.to}", f"--to={options.to}"]
    subprocess.run([sys.executable, "-m", "impala_tf", "report", *report], check=False)
    return 1 if failed else 0


def _parse(words: Sequence[str]) -> tuple[argparse.Namespace, list[list[str]]]:
    """Returns the options, and the flags of each group; those of the first without the options."""
    groups: list[list[str]] = [[]]
    for word in words:
        if word == "--":
            groups.append([])
        else:
            groups[-1].append(word)

    def seeds(text: str) -> list[int]:
        return [int(seed) for seed in split(text)]

    parser = argparse.ArgumentParser(
        "impala compare",
        "impala compare [options] [--flag=VALUE ...] [-- --flag=VALUE ...] ...",
        description=str(__doc__).partition("\n\n")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--level_name", action="append", required=True, help="may be repeated")
    parser.add_argument("--seeds", type=seeds, default=[1, 2, 3], metavar="1,2,3")
    parser.add_argument("--jobs", type=int, default=1, help="runs that train side by side")
    parser.add_argument("--to", type=Path, default=Path("runs/compare"), metavar="FOLDER")
    options, groups[0] = parser.parse_known_args(groups[0])
    for flag in itertools.chain.from_iterable(groups):
        if not flag.startswith("--") or flag.partition("=")[0] in ("--seed", "--logdir"):
            raise ConfigError(f"{flag}: give --seeds, --to, and flags of runs as --flag=VALUE")
    return options, groups


def _label(flags: Sequence[str]) -> str:
    return shlex.join(flag.removeprefix("--") for flag in flags) or "as given"


def _train(trials: dict[Path, list[str]], jobs: int, stop: StopRequest) -> bool:
    """Trains the runs that are not done yet, some side by side; returns whether one failed."""
    running: dict[Path, subprocess.Popen[bytes]] = {}
    waiting = [folder for folder in trials if not child_runs.is_done(folder)]
    count, failed = len(waiting), False
    while running or (waiting and not stop()):
        while waiting and len(running) < jobs and not stop():
            folder = waiting.pop(0)
            flags = [*trials[folder], f"--logdir={folder}"]
            print(f"run {count - len(waiting)} of {count}: {shlex.join(flags)}", flush=True)
            folder.mkdir(parents=True, exist_ok=True)
            running[folder] = child_runs.start(flags, folder / "output.txt")
            stop.on_request(running[folder].terminate)
        for folder, run in list(running.items()):
            if run.poll() is None:
                continue
            del running[folder]
            if not (child_runs.is_done(folder) or stop()):
                failed = True
                print(f"failed: see {folder / 'output.txt'}", file=sys.stderr, flush=True)
        time.sleep(_POLL_S)
    return failed


def _table(options: argparse.Namespace, labels: Sequence[str]) -> list[Sequence[str]]:
    """Returns rows of text: how each variant did, and how it compares with the first one."""
    table: list[Sequence[str]] = [_COLUMNS]
    for number, level in enumerate(options.level_name):
        base: list[float] = []
        for variant, label in enumerate(labels):
            parent = options.to / f"level-{number:02}" / f"variant-{variant:02}"
            folders = [parent / f"seed-{seed}" for seed in options.seeds]
            found = [runs.read(folder) for folder in folders if child_runs.is_done(folder)]
            found = [run for run in found if len(run.curve.returns)]
            lasts = [_last_return(run) for run in found]
            base = base or lasts
            rates = [run.agent_steps_per_s for run in found if run.agent_steps_per_s]
            shown = [lasts, [_mean_return(run) for run in found], rates]
            means = [f"{np.mean(each):.5g}" if each else "-" for each in shown]
            minutes = f"{np.mean([run.minutes for run in found]):.1f}" if found else "-"
            compared = compare(lasts, base) if variant else ["-"] * 4
            table.append([level, label, str(len(found)), *means, minutes, *compared])
    return table


def _last_return(run: Run) -> float:
    """Returns the mean of the mean returns over the last fifth of a run."""
    frames, returns = run.curve.frames, run.curve.returns
    return float(returns[frames >= (1 - _LAST_SHARE) * frames[-1]].mean())


def _mean_return(run: Run) -> float:
    """Returns the mean of the curve over frames: the area under it, by its width."""
    frames, returns = run.curve.frames, run.curve.returns
    if len(returns) < 2:
        return float(returns.mean())
    return float(scipy.integrate.trapezoid(returns, frames) / (frames[-1] - frames[0]))


def compare(values: Sequence[float], base: Sequence[float]) -> list[str]:
    """Compares the returns of a variant's seeds with those of the first variant's.

    Returns:
      The logarithm of the ratio of their means, both ends of its 95 % interval by bootstrap over
      seeds (Agarwal et al., 2021), and the probability that a seed of the variant is better than
      one of the first. "-" stands for what two seeds or less, or returns below 0, cannot tell.
    """
    if not values or not base:
        return ["-"] * 4
    better = f"{float(statistics.improvement(np.array(values), np.array(base))):.2f}"
    if min(*values, *base) <= 0:
        return ["-", "-", "-", better]
    ratio = f"{math.log(np.mean(values) / np.mean(base)):+.3f}"
    if min(len(values), len(base)) < statistics.FEWEST_SEEDS:
        return [ratio, "-", "-", better]

    def log_ratio(first: Any, second: Any, axis: int) -> Any:
        return np.log(first.mean(axis=axis) / second.mean(axis=axis))

    low, high = statistics.interval(log_ratio, values, base)
    return [ratio, f"{float(low):+.3f}", f"{float(high):+.3f}", better]
