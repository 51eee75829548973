"""`impala compare`: trains variants of a run with several seeds, and compares them.

    impala compare --level_name=CartPole-v1 --seeds=1,2,3 -- --core=lstm -- --algorithm=ppo

The flags before the first -- are the first variant. Each group after a -- is another one, with its
flags besides. Several --level_name are several levels, each with runs of its own. --trial=FILE.yaml
adds levels, seeds, flags and variants from a file such as

    level_name: [CartPole-v1, Acrobot-v1]
    seeds: [1, 2, 3]
    flags: {precision: float32}
    variants: [{core: lstm}, {algorithm: ppo}]

Runs of one seed follow each other before those of the next seed, so that all variants meet the same
conditions. Before each run, it waits until the machine is idle. The same command resumes; with more
levels, variants or seeds, it adds their runs. At the end: a table, a CSV file of each curve, and a
report.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from impala_tf.config import ConfigError, command_line, slug, split, to_flag
from impala_tf.machine.process_lifetime import StopRequest
from impala_tf.printable import columns
from impala_tf.processes import provenance
from impala_tf.reporting import runs, statistics
from impala_tf.reporting.runs import Run
from impala_tf.studies import child_runs

_LAST_SHARE = 0.2  # of a run, over which its returns are averaged
_IDLE_SHARE = 0.9  # of the machine's processor time; with less, other programs disturb a run
_MEASURED_S = 3.0
_POLL_S = 0.25
_POINTS = 1000  # of a curve, for its means
_ALL = "all levels"
_COLUMNS = ("level", "measure", "variant", "seeds", "mean", "log ratio", "low", "high", "P(better)")
_CURVE = ("wall_time_s", "environment_frames", "episode_return_mean")  # as in metrics.csv


def main(words: Sequence[str]) -> int:
    """Trains what is missing, then compares; returns 0, or 1 if a run failed or was stopped.

    Raises:
      ConfigError: an argument is wrong, or the folder holds other runs.
    """
    options, groups = _parse(words)
    variants = {_label(group): [*groups[0], *group] for group in ([], *groups[1:])}
    if len({slug(label) for label in variants}) < len(groups):
        raise ConfigError("compare: two variants have the same flags")
    settings = {
        options.to / slug(level) / slug(label): [f"--level_name={level}", *flags]
        for level, (label, flags) in itertools.product(options.level_name, variants.items())
    }
    for folder, flags in settings.items():
        child_runs.refuse_wrong_flags([*flags, f"--logdir={folder}"])
    commit = provenance.git_commit()
    for folder, flags in settings.items():
        child_runs.claim_folder("to", folder, {"commit": commit, "flags": flags})
    trials = {
        folder / f"seed-{seed}": [*flags, f"--seed={seed}"]
        for seed, (folder, flags) in itertools.product(options.seeds, settings.items())
    }
    stop = StopRequest()
    stop.install()
    failed = _train(trials, options, stop)
    if stop():
        print("stopped; the same command resumes")
        return 1
    table = tabulate(options, list(variants))
    print(columns(table), end="")
    _write(options.to / "comparison.csv", table)
    report = [f"--logdir={options.to}", f"--to={options.to}"]
    subprocess.run([sys.executable, "-m", "impala_tf", "report", *report], check=False)
    return 1 if failed else 0


def seeds(text: str) -> list[int]:
    """Returns the numbers of a comma separated text; ValueError: there is something else."""
    return [int(seed) for seed in split(text)]


def _parse(words: Sequence[str]) -> tuple[argparse.Namespace, list[list[str]]]:
    """Returns the options, and the flags of each group; those of the first without the options."""
    groups: list[list[str]] = [[]]
    for word in words:
        if word == "--":
            groups.append([])
        else:
            groups[-1].append(word)

    parser = command_line.OneLineParser(
        "impala compare",
        "impala compare [options] [--flag=VALUE ...] [-- --flag=VALUE ...] ...",
        description=str(__doc__).partition("\n\n")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--trial", type=Path, metavar="FILE.yaml")
    parser.add_argument("--level_name", action="append", default=[], help="may be repeated")
    parser.add_argument("--seeds", type=seeds, default=[1, 2, 3], metavar="1,2,3")
    parser.add_argument(
        "--jobs", type=int, default=1, help="runs side by side; with two or more, also --allow_busy"
    )
    parser.add_argument("--to", type=Path, default=Path("runs/compare"), metavar="FOLDER")
    parser.add_argument(
        "--allow_busy", action="store_true", help="also train and compare beside other programs"
    )
    options, _ = parser.parse_known_args(groups[0])
    if options.trial:
        first, *others = _read_trial(options.trial)
        groups = [[*first, *groups[0]], *others, *groups[1:]]
    options, groups[0] = parser.parse_known_args(groups[0])
    if not options.level_name:
        raise ConfigError("compare: give --level_name, or a --trial that has it")
    for flag in itertools.chain.from_iterable(groups):
        if not flag.startswith("--") or flag.partition("=")[0] in ("--seed", "--logdir"):
            raise ConfigError(f"{flag}: give --seeds, --to, and flags of runs as --flag=VALUE")
    options.allow_busy |= options.jobs > 1
    return options, groups


def _read_trial(path: Path) -> list[list[str]]:
    """Returns the groups of arguments that a file stands for.

    Raises:
      ConfigError: the file cannot be read, or has something else.
    """
    import yaml

    def flags(group: dict[str, Any]) -> list[str]:
        return [to_flag(*item) for item in group.items()]

    try:
        trial = dict(yaml.safe_load(path.read_text(encoding="utf-8")))
        first = [f"--level_name={level}" for level in trial.pop("level_name", [])]
        if seeds := trial.pop("seeds", []):
            first.append(f"--seeds={','.join(map(str, seeds))}")
        first += flags(trial.pop("flags", {}))
        others = [flags(group) for group in trial.pop("variants", [])]
    except OSError as error:
        raise ConfigError(f"--trial={path}: {error.strerror}") from None
    except (AttributeError, TypeError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"--trial={path}: is no trial (see --help): {error}") from None
    if trial:
        raise ConfigError(f"--trial={path}: has {', '.join(trial)}, which no trial has")
    return [first, *others]


def _label(flags: Sequence[str]) -> str:
    return shlex.join(flag.removeprefix("--") for flag in flags) or "as given"


def _train(trials: dict[Path, list[str]], options: argparse.Namespace, stop: StopRequest) -> bool:
    """Trains the runs that are not done yet, some side by side; returns whether one failed."""
    running: dict[Path, subprocess.Popen[bytes]] = {}
    waiting = [folder for folder in trials if not child_runs.is_done(folder)]
    count, failed, is_told = len(waiting), False, False
    while running or (waiting and not stop()):
        while waiting and len(running) < options.jobs and not stop():
            idle = measure_idle_share()
            if idle < _IDLE_SHARE and not options.allow_busy:
                if not is_told:
                    print(
                        f"waiting: the machine is {idle:.0%} idle; --allow_busy trains", flush=True
                    )
                is_told = True
                continue
            folder, is_told = waiting.pop(0), False
            flags = [*trials[folder], f"--logdir={folder}"]
            print(f"run {count - len(waiting)} of {count}: {shlex.join(flags)}", flush=True)
            folder.mkdir(parents=True, exist_ok=True)
            _note_idle_share(folder, idle)
            running[folder] = child_runs.start(flags, folder / "output.txt")
            stop.on_request(running[folder].terminate)
        for folder, run in list(running.items()):
            if run.poll() is None:
                continue
            del running[folder]
            _note_idle_share(folder, measure_idle_share())
            if not (child_runs.is_done(folder) or stop()):
                failed = True
                print(f"failed: see {folder / 'output.txt'}", file=sys.stderr, flush=True)
        time.sleep(_POLL_S)
    return failed


def measure_idle_share(seconds: float = _MEASURED_S) -> float:
    """Returns the share of the machine's processor time that no program used meanwhile."""

    def spent() -> Any:
        # user, nice, system, idle, iowait, irq, softirq, steal
        return np.array(Path("/proc/stat").read_text(encoding="utf-8").split()[1:9], float)

    before = spent()
    time.sleep(seconds)
    used = spent() - before
    return float(used[3:5].sum() / used.sum())


def _idle_share(folder: Path) -> float:
    """Returns the lowest share that was noted for a run; 1 if there is none."""
    path = folder / "idle.txt"
    return float(path.read_text(encoding="utf-8")) if path.exists() else 1.0


def _note_idle_share(folder: Path, share: float) -> None:
    share = min(share, _idle_share(folder))
    (folder / "idle.txt").write_text(f"{share:.3f}\n", encoding="utf-8")


def _write(path: Path, rows: Sequence[Sequence[Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


def tabulate(options: argparse.Namespace, labels: Sequence[str]) -> list[Sequence[str]]:
    """Returns rows of text: how each variant did, and how it compares with the first one.

    Runs that had other work beside them are left out, and named. Also writes every curve.
    """
    table: list[Sequence[str]] = [_COLUMNS]
    pairs: dict[tuple[str, str], list[Any]] = {}
    for level in options.level_name:
        parents = {label: options.to / slug(level) / slug(label) for label in labels}
        found = {label: _read(parent, options) for label, parent in parents.items()}
        rows = []
        for label, of_variant in found.items():
            of_base = found[labels[0]]
            both = [*of_variant, *of_base]
            minutes = min((run.curve.minutes[-1] for run in both), default=0.0)
            # Only gains have a logarithm: returns below 0 count from the lowest one of both.
            floor = min([0.0, *(run.curve.returns.min() for run in both)])
            base = _measure(of_base, minutes)
            for measure, values in _measure(of_variant, minutes).items():
                low = 0.0 if measure == "steps/s" else floor
                pair = [[x - low for x in each] for each in (values, base[measure])]
                pairs.setdefault((measure, label), []).append(pair)
                mean = f"{np.mean(values):.5g}" if values else "-"
                compared = compare([pair]) if label != labels[0] else ["-"] * 4
                rows.append([level, measure, label, str(len(values)), mean, *compared])
        table += sorted(rows, key=lambda row: row[1])
    if len(options.level_name) > 1:
        for (measure, label), each in pairs.items():
            if label != labels[0]:
                seeds = str(min(len(values) for values, _ in each))
                table.append([_ALL, measure, label, seeds, "-", *compare(each)])
    return table


def _read(parent: Path, options: argparse.Namespace) -> list[Run]:
    """Returns the runs of a level's variant that can be compared, and writes their curves."""
    found = []
    for seed in options.seeds:
        folder = parent / f"seed-{seed}"
        if not child_runs.is_done(folder):
            continue
        run = runs.read(folder)
        curve = zip(60 * run.curve.minutes, run.curve.frames, run.curve.returns, strict=True)
        _write(parent / f"seed-{seed}.csv", [_CURVE, *([f"{x:.8g}" for x in row] for row in curve)])
        if (idle := _idle_share(folder)) < _IDLE_SHARE and not options.allow_busy:
            print(
                f"left out: {folder}, as the machine was {idle:.0%} idle beside it; delete it to"
                " train it again, or add --allow_busy"
            )
        elif len(run.curve.returns):
            found.append(run)
    return found


def _measure(found: Sequence[Run], minutes: float) -> dict[str, list[float]]:
    """Returns what each run reached: {measure: a value for each run}.

    Over frames, this is the mean of the whole curve (the area under it, by its width), and of its
    last fifth; over minutes, the same of the curve until `minutes`.
    """
    measures: dict[str, list[float]] = {
        "steps/s": [run.agent_steps_per_s for run in found if run.agent_steps_per_s]
    }
    for axis in ("frames", "minutes"):
        curves = []
        for run in found:
            x = getattr(run.curve, axis)
            grid = np.linspace(0, minutes if axis == "minutes" else x[-1], _POINTS)
            curves.append(np.interp(grid, x, run.curve.returns))
        first = int((1 - _LAST_SHARE) * _POINTS)
        measures[f"last fifth of {axis}"] = [float(curve[first:].mean()) for curve in curves]
        measures[f"all {axis}"] = [float(curve.mean()) for curve in curves]
    return measures


def compare(pairs: Sequence[Sequence[Sequence[float]]]) -> list[str]:
    """Compares a variant with the first one, over one or more levels.

    Args:
      pairs: of each level, the values of the variant's seeds, and of the first variant's seeds.

    Returns:
      The logarithm of the ratio of their means, both ends of its 95 % interval by bootstrap over
      seeds (Agarwal et al., 2021), and the probability that a seed of the variant is better than
      one of the first; of several levels, their means. "-" stands for what two seeds or less, or
      values that are not above 0, cannot tell.
    """
    samples = [np.array(values) for pair in pairs for values in pair]
    if not all(map(len, samples)):
        return ["-"] * 4
    chances = map(statistics.improvement, samples[::2], samples[1::2])
    better = f"{np.mean(list(chances)):.2f}"
    if min(sample.min() for sample in samples) <= 0:
        return ["-", "-", "-", better]

    def log_ratio(*samples: Any, axis: int) -> Any:
        logs = [np.log(sample.mean(axis=axis)) for sample in samples]
        return (sum(logs[::2]) - sum(logs[1::2])) / len(pairs)

    ratio = f"{log_ratio(*samples, axis=0):+.3f}"
    if min(map(len, samples)) < statistics.FEWEST_SEEDS:
        return [ratio, "-", "-", better]
    low, high = statistics.interval(log_ratio, *samples)
    return [ratio, f"{float(low):+.3f}", f"{float(high):+.3f}", better]
